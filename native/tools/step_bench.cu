// step_bench [--size tiny|mid|27b] [--family hybrid|gdn|attn] [--context N,...] [--m N,...]
// [--repeats N] [--json PATH] [--no-check]
//
// The whole step on this machine's GPU: a synthetic model made on the device; by bytes, M rows
// against single steps, rollbacks, the state and what follows; then medians of the time of each M
// at each context (the tokens before it are skipped: their keys and values are one constant), of
// mark plus rollback, and the copy rate of the same run. Repeats of a step are compared with the
// first one by bytes as well; of one that differs: which values, and the first layer whose state
// does. No time is printed after a byte that differs. VLLM_CUDA_PROFILE=1 adds the time of each
// operation, one by one.
#include <chrono>
#include <cstdlib>

#include "model/model.h"
#include "tools/bench.h"
#include "tools/synthetic.h"

using namespace vcuda;
using gpu::check;

namespace bench {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr int kMore = 64;                      // positions behind the longest context
constexpr uint32_t kSkippedWord = 0x3d000000;  // 0.03125: a number, and not zero

struct Options {
  std::string size = "27b", family = "hybrid", json;
  std::vector<int> contexts{512}, ms{1, 2, 3, 4, 5, 6, 7, 8};
  int repeats = 24;
  bool check = true;
};

// The model with its outputs in pinned memory, and tokens from a generator.
class Bench {
 public:
  Bench(const Synthetic& synthetic, int context)
      : c_(synthetic.config()),
        backend_(make_backend(vcuda_dev_options{sizeof(vcuda_dev_options), 0, 0})) {
    const auto begin = Clock::now();
    const vcuda_model_desc desc = synthetic.desc(context);
    model_ = std::make_unique<Model>(*backend_, desc);
    check(cudaDeviceSynchronize(), "load");
    load_s_ = seconds_since(begin);
    h_.resize(kMore * size_t(c_.hidden)), logits_.resize(kMore * size_t(c_.vocab));
  }

  Model& model() { return *model_; }
  Backend& backend() { return *backend_; }
  double load_s() const { return load_s_; }
  vcuda_model_info info() const {
    vcuda_model_info info{};
    model_->info(info);
    return info;
  }
  std::vector<int32_t> draw(int n) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < n; ++i) {
      random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
      tokens.push_back(static_cast<int32_t>((random_ >> 33) % static_cast<uint64_t>(c_.vocab)));
    }
    return tokens;
  }
  void step(const std::vector<int32_t>& tokens) {
    const int m = static_cast<int>(tokens.size());
    if (m == 1) model_->step(tokens.data(), 1, h_.get(), logits_.get());
    else model_->step_m(tokens.data(), m, h_.get(), logits_.get());
  }
  // h_out and logits of row `row` of the last step.
  std::vector<float> row(int row) const {
    const float *h = h_.get() + size_t(row) * size_t(c_.hidden),
                *logits = logits_.get() + size_t(row) * size_t(c_.vocab);
    std::vector<float> v(h, h + c_.hidden);
    v.insert(v.end(), logits, logits + c_.vocab);
    return v;
  }
  // Whether row `row` of the last step is this one, which row() gave before.
  bool is_row(const std::vector<float>& expected, int row) const {
    const size_t hidden = size_t(c_.hidden), vocab = size_t(c_.vocab);
    return !std::memcmp(expected.data(), h_.get() + size_t(row) * hidden, hidden * sizeof(float)) &&
           !std::memcmp(expected.data() + hidden, logits_.get() + size_t(row) * vocab,
                        vocab * sizeof(float));
  }
  // f(layer, kind, values) for all that state_read hands out; long attention caches, gigabytes of
  // them, are left out.
  template <class F>
  void each_state(F f) const {
    std::vector<float> part;
    for (int layer = 0; layer < c_.layers; ++layer) {
      const bool gdn = c_.layer_kinds[layer] == VCUDA_LAYER_GDN;
      if (!gdn && info().position > 2048) continue;
      const int first = gdn ? VCUDA_STATE_S : VCUDA_STATE_KEYS;
      for (int kind = first; kind < first + 2; ++kind) {
        part.resize(model_->state_size(layer, kind) / sizeof(float));
        model_->state_read(layer, kind, part.data());
        f(layer, kind, part);
      }
    }
  }
  std::vector<float> state() const {
    std::vector<float> v;
    each_state([&](int, int, const std::vector<float>& part) {
      v.insert(v.end(), part.begin(), part.end());
    });
    return v;
  }

 private:
  const vcuda_config& c_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  gpu::Mapped<float> h_, logits_;
  double load_s_ = 0;
  uint64_t random_ = 12345;
};

void equal(const std::vector<float>& expected, const std::vector<float>& found, const char* what,
           int m, int position) {
  if (expected.size() == found.size() &&
      std::memcmp(expected.data(), found.data(), expected.size() * sizeof(float)) == 0)
    return;
  fail(VCUDA_E_INTERNAL, "position %d, M = %d: %s DIFFERS", position, m, what);
}

// From the present position: single steps once, then every M after a mark, against them.
void check_rows(Bench& b, int most) {
  Model& model = b.model();
  const int position = b.info().position, kept = most / 2;
  const std::vector<int32_t> tokens = b.draw(most), next = b.draw(2);
  std::vector<std::vector<float>> rows;
  const std::vector<float> before = b.state();
  std::vector<float> half, after;
  model.mark();
  for (int i = 0; i < most; ++i) {
    b.step({tokens[size_t(i)]});
    rows.push_back(b.row(0));
    if (i + 1 == kept) half = b.state();
  }
  after = b.state();
  for (int32_t token : next) b.step({token}), rows.push_back(b.row(0));
  model.rollback();
  equal(before, b.state(), "the state after a rollback of single steps", 1, position);
  for (int m = 2; m <= most; ++m) {
    model.mark();
    b.step({tokens.begin(), tokens.begin() + m});
    for (int i = 0; i < m; ++i)
      equal(rows[size_t(i)], b.row(i), "a row against its single step", m, position);
    if (m == most) {
      equal(after, b.state(), "the state", m, position);
      for (size_t i = 0; i < next.size(); ++i) {
        b.step({next[i]});
        equal(rows[size_t(most) + i], b.row(0), "a step that follows", m, position);
      }
    }
    model.rollback();
  }
  equal(before, b.state(), "the state after rollbacks", most, position);
  model.mark();
  b.step(tokens);
  model.rollback_to(kept);
  equal(half, b.state(), "the state after rollback_to", most, position);
  b.step({tokens[size_t(kept)]});
  equal(rows[size_t(kept)], b.row(0), "the step after rollback_to", most, position);
  std::printf(
      "position %d: M = 2..%d equal single steps, so do rollbacks, rollback_to, the state and the "
      "steps that follow: all bytes\n",
      position, most);
}

size_t different(const float* a, const float* b, size_t n, size_t& first) {
  size_t count = 0;
  for (size_t i = n; i-- > 0;)
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0) ++count, first = i;
  return count;
}

// The last step is not what the same step was at first: which values, whether it or the first was
// the odd one, and the first parts of the state that differ.
void explain(Bench& b, const std::vector<int32_t>& tokens,
             const std::vector<std::vector<float>>& first, int repeat) {
  const int m = static_cast<int>(tokens.size()), position = b.info().position;
  for (int row = 0; row < m; ++row) {
    const std::vector<float> found = b.row(row), &expected = first[size_t(row)];
    size_t at = 0;
    if (const size_t n = different(expected.data(), found.data(), found.size(), at))
      std::printf(
          "M = %d, repeat %d, row %d: %zu values of h and logits differ, the first at %zu: "
          "%.9g, then %.9g\n",
          m, repeat, row, n, at, double(expected[at]), double(found[at]));
  }
  const std::vector<float> state = b.state();
  b.model().rollback();
  b.model().mark();
  b.step(tokens);
  bool same = true;
  for (int row = 0; row < m; ++row) same &= b.is_row(first[size_t(row)], row);
  std::printf("once more: %s\n", same ? "the first one's bytes" : "not the first one's bytes");
  size_t from = 0;
  int told = 0;
  b.each_state([&](int layer, int kind, const std::vector<float>& part) {
    size_t at = 0;
    const size_t n = different(state.data() + from, part.data(), part.size(), at);
    if (n && ++told <= 6)
      std::printf(
          "layer %d, state %d: %zu of %zu values differ, the first at %zu: %.9g, once more "
          "%.9g\n",
          layer, kind, n, part.size(), at, double(state[from + at]), double(part[at]));
    from += part.size();
  });
  std::fflush(stdout);
  fail(VCUDA_E_INTERNAL, "position %d, M = %d: a row of the same step again DIFFERS", position, m);
}

struct Times {
  std::vector<double> device, wall;
};

// Steps of m rows, each at this position: a mark before and a rollback behind each. All of them are
// the same step, so a row that differs is a race: such a one may show itself once in a hundred.
Times time_steps(Bench& b, int m, int repeats) {
  Times t;
  const std::vector<int32_t> tokens = b.draw(m);
  std::vector<std::vector<float>> first;
  for (int i = 0; i < repeats + 3; ++i) {
    b.model().mark();
    const auto begin = Clock::now();
    b.step(tokens);
    if (i >= 3) {
      t.wall.push_back(seconds_since(begin) * 1e3);
      t.device.push_back(b.backend().step_seconds() * 1e3);
    }
    for (int row = 0; row < m; ++row) {
      if (i == 0) first.push_back(b.row(row));
      else if (!b.is_row(first[size_t(row)], row)) explain(b, tokens, first, i);
    }
    b.model().rollback();
  }
  return t;
}

double mark_rollback_us(Bench& b, int repeats) {
  std::vector<double> us;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = Clock::now();
    b.model().mark();
    b.model().rollback();
    check(cudaDeviceSynchronize(), "mark");
    us.push_back(seconds_since(begin) * 1e6);
  }
  return median(us);
}

void run(const Options& o) {
  const Machine machine;
  const double rate = copy_rate(nullptr);
  const int most = *std::max_element(o.ms.begin(), o.ms.end()),
            longest = *std::max_element(o.contexts.begin(), o.contexts.end());
  setenv("VLLM_CUDA_Q35_MM", std::to_string(std::max(2, most)).c_str(), 1);
  const Synthetic synthetic(o.family, o.size, 7);
  Bench b(synthetic, longest + kMore);
  const double weight_bytes = static_cast<double>(b.info().weight_bytes);
  std::printf("%s, driver %s, copy %.0f GB/s; %s %s loaded in %.2f s, %.3f GB of weights a step\n",
              machine.p.name, machine.driver.c_str(), rate, o.size.c_str(), o.family.c_str(),
              b.load_s(), weight_bytes / 1e9);
  auto begin = Clock::now();
  b.step(b.draw(std::max(2, most)));
  const double first_s = seconds_since(begin);
  std::printf("first step of %d rows after the load %.2f s\n", std::max(2, most), first_s);

  Json json;
  json.open('{').machine(machine, rate).open('{', "model");
  json.field("size", o.size).field("family", o.family).field("weight_bytes", weight_bytes, 0);
  json.field("load_s", b.load_s()).field("first_step_s", first_s).close();
  json.field("equal_bytes",
             o.check ? "M rows, rollbacks, state, steps that follow" : "not checked");
  if (o.check) {
    while (b.info().position < 61) b.step(b.draw(1));
    check_rows(b, most);
  }
  json.open('[', "steps");
  for (int context : o.contexts) {
    b.model().skip_to(context, kSkippedWord);
    for (int m : o.ms) {
      const Times t = time_steps(b, m, o.repeats);
      const double ms = median(t.device),
                   least = *std::min_element(t.device.begin(), t.device.end());
      std::printf(
          "context %6d M %d  device %7.3f ms (least %7.3f)  with logits on the host %7.3f ms  "
          "weights at %4.1f %% of the copy rate\n",
          context, m, ms, least, median(t.wall), weight_bytes / ms / 1e4 / rate);
      if (!b.backend().profile().empty()) std::printf("%s", b.backend().profile().c_str());
      std::fflush(stdout);
      json.open('{').field("context", context).field("m", m).field("device_ms", ms);
      json.field("least_ms", least).field("host_ms", median(t.wall)).close();
    }
    if (o.check) check_rows(b, most);
  }
  const double marks = mark_rollback_us(b, o.repeats);
  std::printf("mark plus rollback %.2f us\n", marks);
  json.close().field("mark_rollback_us", marks, 2).close();
  if (!o.json.empty()) json.write(o.json);
}

}  // namespace bench

int main(int argc, char** argv) {
  try {
    bench::Options o;
    for (int i = 1; i < argc; ++i) {
      const std::string a = argv[i];
      if (a == "--no-check") {
        o.check = false;
        continue;
      }
      if (i + 1 == argc) fail(VCUDA_E_ARGUMENT, "%s: unknown, or without a value", a.c_str());
      const char* value = argv[++i];
      if (a == "--size") o.size = value;
      else if (a == "--family") o.family = value;
      else if (a == "--context") o.contexts = bench::numbers(value);
      else if (a == "--m") o.ms = bench::numbers(value);
      else if (a == "--repeats") o.repeats = std::atoi(value);
      else if (a == "--json") o.json = value;
      else fail(VCUDA_E_ARGUMENT, "%s: unknown", a.c_str());
    }
    if (o.repeats < 1 || o.ms.empty() || o.contexts.empty())
      fail(VCUDA_E_ARGUMENT, "--repeats, --m and --context need a number of 1 or more");
    for (int m : o.ms)
      if (m < 1 || m > 8) fail(VCUDA_E_ARGUMENT, "--m: %d is not from 1 to 8", m);
    for (size_t i = 0; i < o.contexts.size(); ++i)
      if (o.contexts[i] < (i ? o.contexts[i - 1] : 128))
        fail(VCUDA_E_ARGUMENT, "--context: ascending, from 128");
    bench::run(o);
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "step_bench: %s\n", e.what());
    return e.status() == VCUDA_E_INTERNAL ? 1 : 2;
  }
}
