// Largest error of each function of arith/ over its inputs, in ulp of the float32 result.
//
//   ulp [--stride N] [--threads N] [exp|log1p|sigmoid|silu|softplus|sincos ...]
//
// Every float32 bit pattern (or every Nth) goes through the function. Its error is first taken
// against the double-precision libm, which is off by less than 2^-26 ulp of a float32 itself, and
// again in long double wherever the first comes within kRecheck of the largest so far: the number
// printed is the long double one. NaNs are compared as a class, zeros with their sign. "outputs" is
// a digest of all inputs and outputs: the same for every compiler, instruction set and device.
// sincos takes angles position * inv_freq as rotary embedding makes them, and rounds to float32;
// each must be the nearest. Every input of the five functions takes 15 minutes of one core: a
// stride of 64 is enough for a look. Exit: 0 as stated in arith/, 1 a larger error or other outputs
// (those only without a stride), 2 usage.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include "arith/trig.h"
#include "tools/ulp.h"

namespace {

using namespace vcuda;

constexpr double kRecheck = 0x1p-20;
constexpr uint64_t kInputs = uint64_t(1) << 32;
constexpr uint64_t kChunk = uint64_t(1) << 20;  // bit patterns a thread takes at a time
constexpr int kBlock = 1024;

struct Worst {
  double error = -1.0;
  uint32_t input = 0;
  uint64_t count = 0;
  uint64_t digest = 0;
};

struct Options {
  uint64_t stride = 1;
  unsigned threads = 1;
};

void measure_chunk(const tools::Function& f, uint64_t first, uint64_t end, uint64_t stride,
                   Worst& worst) {
  float x[kBlock], y[kBlock];
  for (uint64_t at = first; at < end;) {
    int n = 0;
    for (; n < kBlock && at < end; ++n, at += stride)
      x[n] = arith::as_float(static_cast<uint32_t>(at));
    f.block(x, y, n);
    worst.count += static_cast<uint64_t>(n);
    for (int i = 0; i < n; ++i) {
      worst.digest += tools::digest_term(x[i], y[i]);
      if (!(tools::ulp_error(y[i], f.ref(static_cast<double>(x[i]))) > worst.error - kRecheck))
        continue;
      const double error = tools::ulp_error(y[i], f.ref_long(static_cast<long double>(x[i])));
      if (error > worst.error) worst.error = error, worst.input = arith::as_bits(x[i]);
    }
  }
}

template <typename Work>
void on_threads(unsigned threads, const Work& work) {
  std::vector<std::thread> pool;
  for (unsigned i = 0; i < threads; ++i) pool.emplace_back(work);
  for (std::thread& t : pool) t.join();
}

bool measure(const tools::Function& f, const Options& options) {
  std::atomic<uint64_t> next{0};
  std::mutex lock;
  Worst worst;
  const uint64_t step = kChunk * options.stride;
  on_threads(options.threads, [&] {
    Worst mine;
    for (uint64_t first; (first = next.fetch_add(step)) < kInputs;)
      measure_chunk(f, first, std::min(first + step, kInputs), options.stride, mine);
    const std::lock_guard<std::mutex> hold(lock);
    // Among equal errors the smallest bit pattern, whatever the threads did.
    const bool larger =
        mine.error > worst.error || (mine.error == worst.error && mine.input < worst.input);
    worst.count = mine.count += worst.count;
    worst.digest = mine.digest += worst.digest;
    if (larger) worst = mine;
  });
  const bool within = worst.error <= f.bound_ulp;
  const bool same = options.stride != 1 || worst.digest == f.outputs;
  std::printf("%-9s %.5f ulp at 0x%08x (%.9g), %llu inputs, outputs %016llx%s%s\n", f.name,
              worst.error, worst.input, static_cast<double>(arith::as_float(worst.input)),
              static_cast<unsigned long long>(worst.count),
              static_cast<unsigned long long>(worst.digest),
              within ? "" : ": ABOVE THE STATED ERROR", same ? "" : ": NOT THE RECORDED OUTPUTS");
  std::fflush(stdout);
  return within && same;
}

// Angles of positions 0 .. 2^18 - 1 at 64 frequencies from 1 down to 1e-7, geometric as rotary
// frequencies are.
bool measure_sincos(const Options& options) {
  constexpr int kFrequencies = 64;
  constexpr int kPositions = 1 << 18;
  std::atomic<int> next{0};
  std::mutex lock;
  double worst = 0.0, worst_angle = 0.0;
  uint64_t count = 0, misrounded = 0;
  on_threads(options.threads, [&] {
    double mine = 0.0, angle = 0.0;
    uint64_t n = 0, wrong = 0;
    for (int i; (i = next.fetch_add(1)) < kFrequencies;) {
      const float frequency = static_cast<float>(std::pow(1e7, -i / double(kFrequencies - 1)));
      for (int position = 0; position < kPositions; position += static_cast<int>(options.stride)) {
        const double a = position * static_cast<double>(frequency);
        double s, c;
        arith::sincos64(a, s, c);
        const long double exact[2] = {std::sin(static_cast<long double>(a)),
                                      std::cos(static_cast<long double>(a))};
        const float got[2] = {static_cast<float>(s), static_cast<float>(c)};
        for (int j = 0; j < 2; ++j) {
          const double error = tools::ulp_error(got[j], exact[j]);
          if (error > mine) mine = error, angle = a;
          wrong += got[j] != static_cast<float>(exact[j]);
          ++n;
        }
      }
    }
    const std::lock_guard<std::mutex> hold(lock);
    count += n, misrounded += wrong;
    if (mine > worst) worst = mine, worst_angle = angle;
  });
  std::printf("%-9s %.8f ulp at %a (%.17g), %llu values, %llu not the nearest float32\n", "sincos",
              worst, worst_angle, worst_angle, static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(misrounded));
  std::fflush(stdout);
  return misrounded == 0;
}

int usage(const char* why, const char* what) {
  std::fprintf(stderr,
               "ulp: %s '%s'; use: ulp [--stride N] [--threads N] "
               "[exp|log1p|sigmoid|silu|softplus|sincos ...]\n",
               why, what);
  return 2;
}

bool is(const char* name, const char* wanted) {
  return std::strcmp(name, wanted) == 0 || std::strcmp(name, "all") == 0;
}

bool known(const char* name) {
  if (is(name, "sincos")) return true;
  return std::any_of(std::begin(tools::kFunctions), std::end(tools::kFunctions),
                     [name](const tools::Function& f) { return is(name, f.name); });
}

bool run(const char* name, const Options& options) {
  bool ok = true;
  for (const tools::Function& f : tools::kFunctions)
    if (is(name, f.name)) ok &= measure(f, options);
  if (is(name, "sincos")) ok &= measure_sincos(options);
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<const char*> names;
  for (int i = 1; i < argc; ++i) {
    const bool stride = std::strcmp(argv[i], "--stride") == 0;
    if (stride || std::strcmp(argv[i], "--threads") == 0) {
      char* end = nullptr;
      const long value = i + 1 < argc ? std::strtol(argv[i + 1], &end, 10) : 0;
      if (value < 1 || value > (1 << 20) || *end != '\0')
        return usage("a number from 1 to 1048576 must follow", argv[i]);
      if (stride) options.stride = static_cast<uint64_t>(value);
      else options.threads = static_cast<unsigned>(value);
      ++i;
    } else if (argv[i][0] == '-') {
      return usage("unknown option", argv[i]);
    } else if (!known(argv[i])) {
      return usage("no function", argv[i]);
    } else {
      names.push_back(argv[i]);
    }
  }
  if (names.empty()) names.push_back("all");
  bool ok = true;
  for (const char* name : names) ok &= run(name, options);
  return ok ? 0 : 1;
}
