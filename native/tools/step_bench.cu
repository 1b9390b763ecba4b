// step_bench [--size tiny|mid|27b] [--family hybrid|gdn|attn] [--context N,...] [--m N,...]
// [--repeats N] [--json PATH] [--no-check]
//
// The whole step on this machine's GPU: a synthetic model made on the device, M rows against single
// steps and a rollback by bytes, then medians of the time for each M and context, mark plus
// rollback, and the copy rate of the same run. No time is printed after a byte that differs.
// VLLM_CUDA_PROFILE=1 adds the time of each operation, one by one.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "model/model.h"

using namespace vcuda;
using gpu::check;

namespace bench {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

uint64_t fnv1a(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325ull;
  for (unsigned char c : text) value = (value ^ c) * 0x100000001b3ull;
  return value;
}

// The synthetic models of pyharness/inputs/synthetic.py: same names, shapes, types and streams.
class Synthetic {
 public:
  Synthetic(const std::string& family, const std::string& size, uint64_t seed) : seed_(seed) {
    c_.struct_size = sizeof c_;
    int layers = 16;
    if (size == "tiny") {
      c_.hidden = 160, c_.intermediate = 352, c_.vocab = 512, c_.q_heads = 4, c_.kv_heads = 2,
      c_.head_dim = 64, c_.rotary_dim = 16;
      c_.gdn_k_heads = 2, c_.gdn_v_heads = 4, c_.gdn_k_dim = c_.gdn_v_dim = 64,
      layers = family == "hybrid" ? 8 : 4;
    } else if (size == "mid") {
      c_.hidden = 2048, c_.intermediate = 6144, c_.vocab = 32768, c_.q_heads = 8, c_.kv_heads = 2,
      c_.head_dim = 256, c_.rotary_dim = 64;
      c_.gdn_k_heads = 16, c_.gdn_v_heads = 32, c_.gdn_k_dim = c_.gdn_v_dim = 128;
    } else if (size == "27b") {
      c_.hidden = 5120, c_.intermediate = 17408, c_.vocab = 248320, c_.q_heads = 24,
      c_.kv_heads = 4, c_.head_dim = 256, c_.rotary_dim = 64;
      c_.gdn_k_heads = 16, c_.gdn_v_heads = 48, c_.gdn_k_dim = c_.gdn_v_dim = 128, layers = 64;
    } else {
      fail(VCUDA_E_ARGUMENT, "no size '%s': tiny, mid or 27b", size.c_str());
    }
    c_.layers = layers, c_.conv_kernel = 4, c_.tied = 0, c_.rms_eps = 1e-6f;
    for (int i = 0; i < layers; ++i)
      kinds_.push_back(family == "attn" || (family == "hybrid" && i % 4 == 3)
                           ? VCUDA_LAYER_ATTENTION
                           : VCUDA_LAYER_GDN);
    c_.layer_kinds = kinds_.data();
    describe();
  }

  vcuda_model_desc desc(int context) const {
    return {sizeof(vcuda_model_desc), context, &c_, tensors_.data(), tensors_.size()};
  }
  const vcuda_config& config() const { return c_; }

 private:
  void add(const std::string& name, int type, std::vector<int64_t> shape, float offset,
           float scale) {
    names_.push_back(std::make_unique<std::string>(name));
    vcuda_tensor t{};
    t.struct_size = sizeof t, t.type = type, t.name = names_.back()->c_str(),
    t.ndim = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    t.synth = {seed_, fnv1a(name), offset, scale};
    tensors_.push_back(t);
  }
  void matrix(const std::string& name, int64_t rows, int64_t cols, double gain = 1.0,
              bool q4 = true) {
    const double std = gain / std::sqrt(static_cast<double>(cols)),
                 nibble = std::sqrt(255.0 / 12 + 0.25);
    add(name, q4 ? VCUDA_Q4 : VCUDA_F32, {rows, cols}, 0.0f,
        static_cast<float>(q4 ? std / nibble : std * std::sqrt(3.0)));
  }
  void describe() {
    const vcuda_config& c = c_;
    const int64_t h = c.hidden, key = int64_t{c.gdn_k_heads} * c.gdn_k_dim,
                  value = int64_t{c.gdn_v_heads} * c.gdn_v_dim, conv = 2 * key + value;
    const double low = std::log(0.05), high = std::log(6.0);
    add("model.embed_tokens.weight", VCUDA_BF16, {c.vocab, h}, 0.0f, 1.0f);
    for (int i = 0; i < c.layers; ++i) {
      const std::string p = "model.layers." + std::to_string(i) + ".";
      add(p + "input_layernorm.weight", VCUDA_BF16, {h}, 0.0f, 0.25f);
      if (kinds_[static_cast<size_t>(i)] == VCUDA_LAYER_GDN) {
        const std::string g = p + "linear_attn.";
        matrix(g + "in_proj_qkv.weight", conv, h);
        matrix(g + "in_proj_z.weight", value, h);
        matrix(g + "in_proj_b.weight", c.gdn_v_heads, h, 1.5, false);
        matrix(g + "in_proj_a.weight", c.gdn_v_heads, h, 1.0, false);
        add(g + "conv1d.weight", VCUDA_BF16, {conv, 1, c.conv_kernel}, 0.0f, 0.8f);
        add(g + "A_log", VCUDA_F32, {c.gdn_v_heads}, static_cast<float>((high + low) / 2),
            static_cast<float>((high - low) / 2));
        add(g + "dt_bias", VCUDA_F32, {c.gdn_v_heads}, -1.5f, 2.5f);
        add(g + "norm.weight", VCUDA_F32, {c.gdn_v_dim}, 1.0f, 0.25f);
        matrix(g + "out_proj.weight", h, value);
      } else {
        const std::string a = p + "self_attn.";
        matrix(a + "q_proj.weight", 2ll * c.q_heads * c.head_dim, h);
        matrix(a + "k_proj.weight", int64_t{c.kv_heads} * c.head_dim, h);
        matrix(a + "v_proj.weight", int64_t{c.kv_heads} * c.head_dim, h);
        matrix(a + "o_proj.weight", h, int64_t{c.q_heads} * c.head_dim, 1.5);
        add(a + "q_norm.weight", VCUDA_BF16, {c.head_dim}, 0.4f, 0.25f);
        add(a + "k_norm.weight", VCUDA_BF16, {c.head_dim}, 0.4f, 0.25f);
      }
      add(p + "post_attention_layernorm.weight", VCUDA_BF16, {h}, 0.0f, 0.25f);
      matrix(p + "mlp.gate_proj.weight", c.intermediate, h);
      matrix(p + "mlp.up_proj.weight", c.intermediate, h);
      matrix(p + "mlp.down_proj.weight", h, c.intermediate);
    }
    add("model.norm.weight", VCUDA_BF16, {h}, 0.0f, 0.25f);
    matrix("lm_head.weight", c.vocab, h, 2.5);
    if (std::find(kinds_.begin(), kinds_.end(), VCUDA_LAYER_ATTENTION) == kinds_.end()) return;
    for (int i = 0; i < c.rotary_dim / 2; ++i)
      inv_freq_.push_back(static_cast<float>(std::pow(1e7, -2.0 * i / c.rotary_dim)));
    add("rope.inv_freq", VCUDA_F32, {c.rotary_dim / 2}, 0.0f, 0.0f);
    tensors_.back().data = inv_freq_.data();
  }

  uint64_t seed_;
  vcuda_config c_{};
  std::vector<uint8_t> kinds_;
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<vcuda_tensor> tensors_;
  std::vector<float> inv_freq_;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

double copy_rate() {  // GB/s, read plus written
  const size_t bytes = size_t{2} << 30;
  gpu::Temporary a(bytes), b(bytes);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    check(cudaEventRecord(begin), "event");
    check(cudaMemcpyAsync(b.get(), a.get(), bytes, cudaMemcpyDeviceToDevice), "copy");
    check(cudaEventRecord(end), "event");
    check(cudaEventSynchronize(end), "event");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 2) times.push_back(ms / 1000.0);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return 2.0 * static_cast<double>(bytes) / median(times) / 1e9;
}

struct Options {
  std::string size = "27b", family = "hybrid", json;
  std::vector<int> contexts{512}, ms{1, 2, 3, 4, 5, 6, 7, 8};
  int repeats = 24;
  bool check = true;
};

std::vector<int> numbers(const char* text) {
  std::vector<int> v;
  for (const char* p = text; *p;) {
    char* end;
    v.push_back(static_cast<int>(std::strtol(p, &end, 10)));
    if (end == p) fail(VCUDA_E_ARGUMENT, "'%s' is no list of numbers", text);
    p = *end == ',' ? end + 1 : end;
  }
  return v;
}

int run(const Options& o) {
  cudaDeviceProp prop;
  check(cudaGetDeviceProperties(&prop, 0), "device");
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "device");
  const double rate = copy_rate();
  const int most = *std::max_element(o.ms.begin(), o.ms.end()),
            longest = *std::max_element(o.contexts.begin(), o.contexts.end());
  setenv("VLLM_CUDA_Q35_MM", longest > 4096 ? "64" : std::to_string(std::max(2, most)).c_str(), 1);
  const Synthetic synthetic(o.family, o.size, 7);
  const vcuda_config& c = synthetic.config();
  auto backend = make_backend(vcuda_dev_options{sizeof(vcuda_dev_options), 0, 0});
  auto begin = Clock::now();
  const vcuda_model_desc desc = synthetic.desc(longest + 64);
  Model model(*backend, desc);
  check(cudaDeviceSynchronize(), "load");
  const double load_s = seconds_since(begin);
  vcuda_model_info info{};
  model.info(info);
  std::printf("%s, driver %d, copy %.0f GB/s; %s %s loaded in %.2f s, %.3f GB of weights a step\n",
              prop.name, driver, rate, o.size.c_str(), o.family.c_str(), load_s,
              static_cast<double>(info.weight_bytes) / 1e9);

  const size_t hidden = static_cast<size_t>(c.hidden), vocab = static_cast<size_t>(c.vocab);
  gpu::Mapped<float> h, logits;
  h.resize(64 * hidden), logits.resize(64 * vocab);
  uint64_t state = 12345;
  auto draw = [&](int n) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < n; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(c.vocab)));
    }
    return tokens;
  };
  auto forward_to = [&](int position) {
    for (model.info(info); info.position < position; model.info(info)) {
      const int m = std::min(position - info.position, info.mmax);
      model.step(draw(m).data(), m, h.get(), logits.get());
    }
  };

  if (o.check) {
    forward_to(70);
    const std::vector<int32_t> tokens = draw(most);
    std::vector<float> rows_h, rows_logits;
    model.mark();
    for (int i = 0; i < most; ++i) {
      model.step(&tokens[static_cast<size_t>(i)], 1, h.get(), logits.get());
      rows_h.insert(rows_h.end(), h.get(), h.get() + hidden);
      rows_logits.insert(rows_logits.end(), logits.get(), logits.get() + vocab);
    }
    model.rollback();
    for (int m = 2; m <= most; ++m) {
      model.mark();
      model.step_m(tokens.data(), m, h.get(), logits.get());
      const bool same =
          std::memcmp(h.get(), rows_h.data(), static_cast<size_t>(m) * hidden * 4) == 0 &&
          std::memcmp(logits.get(), rows_logits.data(), static_cast<size_t>(m) * vocab * 4) == 0;
      model.rollback();
      if (!same) {
        std::printf("M = %d DIFFERS from single steps\n", m);
        return 1;
      }
    }
    std::printf("M = 2..%d equal single steps, after rollbacks: h_out and logits, all bytes\n",
                most);
  }

  std::string json =
      "{\"device\": \"" + std::string(prop.name) + "\", \"driver\": " + std::to_string(driver) +
      ", \"copy_gb_s\": " + std::to_string(rate) + ", \"load_s\": " + std::to_string(load_s) +
      ", \"weight_bytes\": " + std::to_string(info.weight_bytes) + ", \"steps\": [";
  for (int context : o.contexts) {
    forward_to(context - o.repeats * 2 * 8 > 70 ? context - o.repeats * 2 * 8
                                                : std::min(context / 2, 70));
    for (int m : o.ms) {
      std::vector<double> device, wall;
      model.mark();
      const std::vector<int32_t> tokens = draw(m);
      for (int i = 0; i < o.repeats + 3; ++i) {
        model.info(info);
        if (info.position + m > longest + 64) break;
        begin = Clock::now();
        model.step(tokens.data(), m, h.get(), logits.get());
        if (i < 3) continue;
        wall.push_back(seconds_since(begin) * 1e3);
        device.push_back(backend->step_seconds() * 1e3);
      }
      model.info(info);
      model.rollback();
      const double ms = median(device);
      std::printf(
          "context %6d M %d  device %7.3f ms (least %7.3f)  with logits on the host %7.3f ms  "
          "weights at %4.1f %% of the copy rate\n",
          info.position, m, ms, *std::min_element(device.begin(), device.end()), median(wall),
          static_cast<double>(info.weight_bytes) / ms / 1e4 / rate);
      if (!backend->profile().empty()) std::printf("%s", backend->profile().c_str());
      json += std::string(json.back() == '[' ? "" : ", ") +
              "{\"context\": " + std::to_string(info.position) + ", \"m\": " + std::to_string(m) +
              ", \"device_ms\": " + std::to_string(ms) +
              ", \"wall_ms\": " + std::to_string(median(wall)) + "}";
      std::fflush(stdout);
    }
  }
  std::vector<double> marks;
  for (int i = 0; i < o.repeats; ++i) {
    begin = Clock::now();
    model.mark();
    model.rollback();
    check(cudaDeviceSynchronize(), "mark");
    marks.push_back(seconds_since(begin) * 1e6);
  }
  std::printf("mark plus rollback %.2f us\n", median(marks));
  json += "], \"mark_rollback_us\": " + std::to_string(median(marks)) + "}\n";
  if (!o.json.empty()) {
    FILE* file = std::fopen(o.json.c_str(), "w");
    if (!file || std::fputs(json.c_str(), file) < 0 || std::fclose(file))
      fail(VCUDA_E_ARGUMENT, "%s: cannot be written", o.json.c_str());
  }
  return 0;
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
    return bench::run(o);
  } catch (const Error& e) {
    std::fprintf(stderr, "step_bench: %s\n", e.what());
    return 2;
  }
}
