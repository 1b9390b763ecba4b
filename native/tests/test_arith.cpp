// The functions of arith/: special values, order, error bound on a sample, the same bits from a
// scalar call and from a loop the compiler vectorises, and the same bits as recorded. Compiled by
// nvcc, the recorded bits are also asked of the device. Each check is also run on a function with a
// planted fault, which it must report.
//
// Prints one line a failure. Exit: 0 passed, 1 failed, 77 compiled for a device and there is none.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "arith/quant.h"
#include "arith/trig.h"
#include "tools/ulp.h"

namespace {

using namespace vcuda;
using tools::Function;
using Block = void (*)(const float*, float*, int);

int failures = 0;
bool planted = false;  // a planted fault is counted, not printed

#define FAIL(...) (++failures, planted ? 0 : (std::printf(__VA_ARGS__), std::printf("\n")))

bool same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

float call(Block block, float x) {
  float y;
  block(&x, &y, 1);
  return y;
}

// ---- inputs -------------------------------------------------------------------------------------

// Every 4099th bit pattern, and a grid of 2^-12 over [-128, 128), where the activations live.
std::vector<float> sample() {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += 4099)
    x.push_back(arith::as_float(static_cast<uint32_t>(bits)));
  for (int i = -(1 << 19); i < 1 << 19; ++i) x.push_back(static_cast<float>(i) * 0x1p-12f);
  return x;
}

// Positions below 2^18 at 64 frequencies in (2^-25, 1], the products exact as rotary embedding's
// are.
std::vector<double> sample_angles() {
  std::vector<double> angles;
  for (uint32_t j = 0; j < 64; ++j) {
    const double frequency = static_cast<double>(arith::as_float(0x3f800000u - j * 0x00312345u));
    for (uint32_t i = 0; i < 4096; ++i)
      angles.push_back(frequency * static_cast<double>(i * 24571u & 0x3ffffu));
  }
  return angles;
}

std::vector<float> evaluate(Block block, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  block(x.data(), y.data(), static_cast<int>(x.size()));
  return y;
}

// ---- recorded bits ------------------------------------------------------------------------------

// FNV-1a, 64 bit, over little-endian bytes. Every NaN is hashed as one.
struct Fnv {
  uint64_t state = 0xcbf29ce484222325u;
  void add(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) state = (state ^ (value >> 8 * i & 0xff)) * 0x100000001b3u;
  }
};

uint64_t fnv_hash(const std::vector<float>& values) {
  Fnv h;
  for (float v : values) h.add(std::isnan(v) ? 0x7fc00000u : arith::as_bits(v), 4);
  return h.state;
}

uint64_t fnv_hash(const std::vector<double>& values) {
  Fnv h;
  for (double v : values) h.add(arith::as_bits(v), 8);
  return h.state;
}

// Bits version 1. A change here is a change of the contract.
struct Golden {
  const char* name;
  uint64_t hash;
};
constexpr Golden kGolden[] = {
    {"exp", 0x02a87e2879ed276fu},      {"log1p", 0x1a432cd2f0a82d0du},
    {"sigmoid", 0x7e70ee4f5e2738aau},  {"silu", 0x59781c5e6d0afcf7u},
    {"softplus", 0x5f60ae24657c605fu}, {"sincos", 0x473a67fe7c2a36f6u},
};

void check_hash(const char* where, const char* name, uint64_t got) {
  for (const Golden& g : kGolden) {
    if (std::strcmp(g.name, name) != 0) continue;
    if (g.hash != got)
      FAIL("%s %s: hash of the sample is 0x%016llx, recorded 0x%016llx", where, name,
           static_cast<unsigned long long>(got), static_cast<unsigned long long>(g.hash));
    return;
  }
  FAIL("%s %s: no recorded hash", where, name);
}

// ---- checks of one function ---------------------------------------------------------------------

void check_bound(const Function& f, const std::vector<float>& x) {
  const std::vector<float> y = evaluate(f.block, x);
  double worst = 0.0;
  size_t at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = tools::ulp_error(y[i], f.ref(static_cast<double>(x[i])));
    if (error > worst) worst = error, at = i;
  }
  if (!(worst <= f.bound_ulp))
    FAIL("%s(%.9g) = %.9g: %.4f ulp from the reference, stated %.4f", f.name,
         static_cast<double>(x[at]), static_cast<double>(y[at]), worst, f.bound_ulp);
}

void check_order(const Function& f) {
  if (!f.increasing) return;
  for (uint32_t start = 0x00000000u; start < 0xff000000u; start += 0x00107fe3u) {
    // 512 neighbours in ascending order: ordered integer -> float.
    float x[512], y[512];
    for (uint32_t i = 0; i < 512; ++i) {
      const uint32_t ordered = start + i;
      x[i] = arith::as_float((ordered & 0x80000000u) != 0 ? ordered ^ 0x80000000u : ~ordered);
    }
    f.block(x, y, 512);
    for (int i = 1; i < 512; ++i)
      if (y[i] < y[i - 1])
        return void(FAIL("%s decreases from %.9g to %.9g", f.name, static_cast<double>(x[i - 1]),
                         static_cast<double>(x[i])));
  }
}

void check_scalar(const Function& f, float (*scalar)(float), const std::vector<float>& x) {
  const std::vector<float> y = evaluate(f.block, x);
  for (size_t i = 0; i < x.size(); i += 7) {
    volatile float one = x[i];  // keeps the compiler from making a vector of it
    const float want = scalar(one);
    if (!same(want, y[i]))
      return void(FAIL("%s(%.9g): 0x%08x in a loop, 0x%08x alone", f.name,
                       static_cast<double>(x[i]), arith::as_bits(y[i]), arith::as_bits(want)));
  }
}

struct Special {
  const char* name;
  float x, want;
};
const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kDenormal = 0x1p-149f;
const Special kSpecial[] = {
    {"exp", 0.0f, 1.0f},
    {"exp", -0.0f, 1.0f},
    {"exp", kInf, kInf},
    {"exp", -kInf, 0.0f},
    {"exp", kNan, kNan},
    {"exp", -kNan, kNan},
    {"exp", kDenormal, 1.0f},
    {"exp", -kDenormal, 1.0f},
    {"exp", 0x1.62e42ep+6f, 0x1.ffff08p+127f},  // the last finite result
    {"exp", 0x1.62e430p+6f, kInf},
    {"exp", -FLT_MAX, 0.0f},
    {"exp", FLT_MAX, kInf},
    {"exp", -0x1.9fe368p+6f, kDenormal},  // the last result that is not zero
    {"exp", -0x1.9fe36ap+6f, 0.0f},
    {"log1p", 0.0f, 0.0f},
    {"log1p", -0.0f, -0.0f},
    {"log1p", kDenormal, kDenormal},
    {"log1p", -kDenormal, -kDenormal},
    {"log1p", 0x1p-126f, 0x1p-126f},
    {"log1p", -1.0f, -kInf},
    {"log1p", -0x1.fffffep-1f, -0x1.0a2b24p+4f},
    {"log1p", -0x1.000002p+0f, kNan},
    {"log1p", -kInf, kNan},
    {"log1p", kInf, kInf},
    {"log1p", FLT_MAX, 0x1.62e430p+6f},
    {"log1p", kNan, kNan},
    {"sigmoid", 0.0f, 0.5f},
    {"sigmoid", -0.0f, 0.5f},
    {"sigmoid", kInf, 1.0f},
    {"sigmoid", -kInf, 0.0f},
    {"sigmoid", 104.0f, 1.0f},
    {"sigmoid", -0x1.9fe368p+6f, kDenormal},
    {"sigmoid", -0x1.9fe36ap+6f, 0.0f},
    {"sigmoid", kNan, kNan},
    {"silu", 0.0f, 0.0f},
    {"silu", -0.0f, -0.0f},
    {"silu", kInf, kInf},
    {"silu", -kInf, -0.0f},
    {"silu", FLT_MAX, FLT_MAX},
    {"silu", -FLT_MAX, -0.0f},
    {"silu", 32.0f, 32.0f},
    {"silu", 0x1p-148f, kDenormal},
    {"silu", -0x1p-148f, -kDenormal},
    {"silu", kNan, kNan},
    {"softplus", 0.0f, 0x1.62e430p-1f},
    {"softplus", -0.0f, 0x1.62e430p-1f},
    {"softplus", kInf, kInf},
    {"softplus", -kInf, 0.0f},
    {"softplus", FLT_MAX, FLT_MAX},
    {"softplus", -FLT_MAX, 0.0f},
    {"softplus", 32.0f, 32.0f},
    {"softplus", -0x1.9fe368p+6f, kDenormal},
    {"softplus", kNan, kNan},
};

void check_special(const Function& f) {
  for (const Special& s : kSpecial) {
    if (std::strcmp(s.name, f.name) != 0) continue;
    const float got = call(f.block, s.x);
    if (!same(got, s.want))
      FAIL("%s(%.9g) = 0x%08x (%.9g), must be 0x%08x (%.9g)", f.name, static_cast<double>(s.x),
           arith::as_bits(got), static_cast<double>(got), arith::as_bits(s.want),
           static_cast<double>(s.want));
  }
}

float (*scalar_of(const char* name))(float) {
  if (std::strcmp(name, "exp") == 0) return [](float x) { return arith::exp32(x); };
  if (std::strcmp(name, "log1p") == 0) return [](float x) { return arith::log1p32(x); };
  if (std::strcmp(name, "sigmoid") == 0) return [](float x) { return arith::sigmoid32(x); };
  if (std::strcmp(name, "silu") == 0) return [](float x) { return arith::silu32(x); };
  return [](float x) { return arith::softplus32(x); };
}

// ---- sin and cos --------------------------------------------------------------------------------

using SinCos = void (*)(double, double&, double&);

std::vector<double> evaluate(SinCos f, const std::vector<double>& angles) {
  std::vector<double> out;
  for (double a : angles) {
    double s, c;
    f(a, s, c);
    out.push_back(s), out.push_back(c);
  }
  return out;
}

// Rounded to float32, the nearest one to the true value on the whole sample.
void check_sincos(SinCos f, const std::vector<double>& angles) {
  const std::vector<double> got = evaluate(f, angles);
  for (size_t i = 0; i < got.size(); ++i) {
    const long double a = static_cast<long double>(angles[i / 2]);
    const float want = static_cast<float>(i % 2 == 0 ? std::sin(a) : std::cos(a));
    if (!same(static_cast<float>(got[i]), want))
      return void(FAIL("%s(%a) = %a, nearest float32 %a", i % 2 == 0 ? "sin" : "cos",
                       static_cast<double>(a), got[i], static_cast<double>(want)));
  }
  const double inf = std::numeric_limits<double>::infinity();
  for (double v :
       evaluate(f, std::vector<double>{inf, -inf, std::numeric_limits<double>::quiet_NaN()}))
    if (!std::isnan(v)) FAIL("sincos of an infinity or NaN is %a, must be NaN", v);
  const std::vector<double> zero = evaluate(f, std::vector<double>{0.0});
  if (zero[0] != 0.0 || zero[1] != 1.0) FAIL("sincos(0) is %a, %a, must be 0, 1", zero[0], zero[1]);
}

// ---- digits of activations ----------------------------------------------------------------------

// Every q that an activation can have is its signed digits' sum, however they are made.
void check_digits(uint32_t (*bytes)(int32_t)) {
  for (int32_t q = -(1 << 22); q <= 1 << 22; ++q) {
    int8_t d[3];
    arith::split_digits(q, d[2], d[1], d[0]);
    if (d[2] * 65536 + d[1] * 256 + d[0] != q || d[2] < -64 || d[2] > 64)
      return FAIL("digits of %d: %d %d %d", q, d[2], d[1], d[0]), void();
    for (int i = 0; i < 3; ++i)
      if (static_cast<int8_t>(bytes(q) >> (8 * i)) != d[i])
        return FAIL("digit %d of %d differs in digit_bytes", i, q), void();
  }
}

// ---- how this was compiled and runs -------------------------------------------------------------

// A product that is added must be rounded before; nothing denormal may be flushed.
void check_rounding() {
  volatile float a = 1.0f + 0x1p-12f, b = FLT_MIN, half = 0.5f;
  const float square =
      a;  // a^2 = 1 + 2^-11 + 2^-24, and the last term is lost where the product is rounded
  const float fused = square * square - (1.0f + 0x1p-11f);
  if (fused != 0.0f) FAIL("a product was fused with a sum: build with -ffp-contract=off");
  const float denormal = b * half;
  if (denormal != 0x1p-127f || denormal * 2.0f != FLT_MIN)
    FAIL("denormal numbers are flushed to zero");
}

// ---- planted faults -----------------------------------------------------------------------------

template <typename Check>
void must_report(const char* what, const Check& check) {
  const int before = failures;
  planted = true;
  check();
  planted = false;
  const bool reported = failures > before;
  failures = before;
  if (!reported) FAIL("planted fault not reported: %s", what);
}

float next_up(float x) { return arith::as_float(arith::as_bits(x) + 1u); }

void flip_one(const float* x, float* y, int n) {  // one bit at one input of the sample
  for (int i = 0; i < n; ++i)
    y[i] = x[i] == 1.0f ? next_up(arith::exp32(x[i])) : arith::exp32(x[i]);
}
void off_by_one(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = next_up(arith::exp32(x[i]));
}
void flushed(const float* x, float* y, int n) {  // denormal results flushed to zero
  for (int i = 0; i < n; ++i) {
    const float e = arith::exp32(x[i]);
    y[i] = e < FLT_MIN ? 0.0f : e;
  }
}
void jagged(const float* x, float* y, int n) {  // the order of neighbours lost
  for (int i = 0; i < n; ++i)
    y[i] = arith::as_float(arith::as_bits(arith::exp32(x[i])) ^ (arith::as_bits(x[i]) & 1u));
}
void swallows_nan(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = x[i] != x[i] ? 0.0f : arith::exp32(x[i]);
}
void sincos_off(double x, double& s, double& c) {
  arith::sincos64(x, s, c);
  s += 0x1p-30;
}
void sincos_last_bit(double x, double& s, double& c) {
  arith::sincos64(x, s, c);
  if (x == 24571.0) c = arith::as_double(arith::as_bits(c) ^ 1u);
}

uint32_t no_carry(int32_t q) { return static_cast<uint32_t>(q); }  // unsigned digits

void check_planted(const std::vector<float>& x, const std::vector<double>& angles) {
  Function f = tools::kFunctions[0];
  const auto with = [&f](Block block) -> const Function& { return f.block = block, f; };
  must_report("one bit, in the hash",
              [&] { check_hash("host", "exp", fnv_hash(evaluate(flip_one, x))); });
  must_report("one bit, against the scalar",
              [&] { check_scalar(with(flip_one), scalar_of("exp"), {1.0f}); });
  must_report("a result off by one ulp", [&] { check_bound(with(off_by_one), x); });
  must_report("flushed denormals, in the bound", [&] { check_bound(with(flushed), x); });
  must_report("flushed denormals, in the special values", [&] { check_special(with(flushed)); });
  must_report("neighbours out of order", [&] { check_order(with(jagged)); });
  must_report("a NaN swallowed, in the special values", [&] { check_special(with(swallows_nan)); });
  must_report("a NaN swallowed, in the bound", [&] { check_bound(with(swallows_nan), x); });
  must_report("unsigned digits", [] { check_digits(no_carry); });
  must_report("a sine off by 2^-30", [&] { check_sincos(sincos_off, angles); });
  must_report("one bit of a cosine, in the hash",
              [&] { check_hash("host", "sincos", fnv_hash(evaluate(sincos_last_bit, angles))); });
}

// ---- device -------------------------------------------------------------------------------------

#if defined(__CUDACC__)
__global__ void kernel_functions(const float* x, float* y, int n) {  // y [5, n]
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  y[i] = arith::exp32(x[i]);
  y[n + i] = arith::log1p32(x[i]);
  y[2 * n + i] = arith::sigmoid32(x[i]);
  y[3 * n + i] = arith::silu32(x[i]);
  y[4 * n + i] = arith::softplus32(x[i]);
}

__global__ void kernel_sincos(const double* x, double* y, int n) {  // y [n, 2]
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) arith::sincos64(x[i], y[2 * i], y[2 * i + 1]);
}

template <typename T, typename Kernel>
std::vector<T> on_device(Kernel kernel, const std::vector<T>& x, size_t results) {
  std::vector<T> out(x.size() * results);
  T *in = nullptr, *y = nullptr;
  cudaMalloc(&in, x.size() * sizeof(T));
  cudaMalloc(&y, out.size() * sizeof(T));
  cudaMemcpy(in, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice);
  kernel<<<static_cast<unsigned>((x.size() + 255) / 256), 256>>>(in, y, static_cast<int>(x.size()));
  cudaMemcpy(out.data(), y, out.size() * sizeof(T), cudaMemcpyDeviceToHost);
  cudaFree(in), cudaFree(y);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) FAIL("device: %s", cudaGetErrorString(error));
  return out;
}

void check_device(const std::vector<float>& x, const std::vector<double>& angles) {
  const std::vector<float> y = on_device(kernel_functions, x, 5);
  for (size_t i = 0; i < 5; ++i) {
    const float* first = y.data() + i * x.size();
    check_hash("device", tools::kFunctions[i].name,
               fnv_hash(std::vector<float>(first, first + x.size())));
  }
  check_hash("device", "sincos", fnv_hash(on_device(kernel_sincos, angles, 2)));
}

bool device_present() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}
#endif

}  // namespace

int main() {
  check_rounding();
  check_digits(arith::digit_bytes);
  const std::vector<float> x = sample();
  const std::vector<double> angles = sample_angles();
  for (const Function& f : tools::kFunctions) {
    check_special(f);
    check_order(f);
    check_bound(f, x);
    check_scalar(f, scalar_of(f.name), x);
    check_hash("host", f.name, fnv_hash(evaluate(f.block, x)));
  }
  check_sincos(arith::sincos64, angles);
  check_hash("host", "sincos", fnv_hash(evaluate(arith::sincos64, angles)));
  check_planted(x, angles);
#if defined(__CUDACC__)
  if (!device_present())
    return std::printf("no device: only the host was checked\n"), failures == 0 ? 77 : 1;
  check_device(x, angles);
#endif
  return failures == 0 ? 0 : 1;
}
