#include "tools/operations.h"

#include <algorithm>
#include <cmath>

#include "arith/synth.h"
#include "model/tensor.h"

namespace bench {

using namespace vcuda;

namespace {

constexpr uint64_t kSeed = 7;

// Uniform in [offset - scale, offset + scale).
std::vector<float> random_floats(size_t n, uint64_t key, float offset, float scale) {
  const arith::SynthStream stream = arith::SynthStream::of(kSeed, key);
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = arith::synth_float(stream, i, offset, scale);
  return v;
}

vcuda_tensor synthetic(int type, uint64_t key, float scale) {
  vcuda_tensor t{};
  t.struct_size = sizeof t, t.type = type, t.name = "bench", t.synth = {kSeed, key, 0.0f, scale};
  return t;
}

std::vector<float> floats_of(Backend& b, const float* p, size_t n) {
  std::vector<float> v(n);
  b.read(v.data(), p, n * sizeof(float));
  return v;
}

float* outputs(Backend& b, size_t n) { return static_cast<float*>(b.alloc(n * sizeof(float))); }

// Rows in both forms: a norm with weights of 1 leaves the floats and their quantized form.
Rows activations(Backend& b, int m, int cols, uint64_t key) {
  const size_t n = static_cast<size_t>(m) * cols;
  Rows rows{outputs(b, n), b.alloc(b.act_bytes(cols, m))};
  const float* x = b.upload_floats(random_floats(n, key, 0.0f, 1.0f));
  const float* ones = b.upload_floats(std::vector<float>(static_cast<size_t>(cols), 1.0f));
  static const StateSlot none{};
  const StepInput in{nullptr, m, 0, 1, &none, &none, -1};
  b.begin(in);
  b.rms_norm(x, ones, cols, 1e-6f, m, rows);
  return rows;
}

// Copies of one matrix of 4-bit weights.
std::vector<Linear> matrices(Backend& b, int rows, int cols, int copies) {
  const vcuda_tensor t = synthetic(VCUDA_Q4, 11, 0.2f / std::sqrt(static_cast<float>(cols)));
  std::vector<Linear> found;
  for (int i = 0; i < copies; ++i)
    found.push_back({rows, cols, {b.upload_matrix({Tensor{&t, rows, cols}})}});
  return found;
}

class Projection final : public Operation {
 public:
  Projection(int rows, int cols, bool add) : rows_(rows), cols_(cols), add_(add) {}
  void prepare(Backend& b, int m, int copies) override {
    m_ = m;
    linears_ = matrices(b, rows_, cols_, copies);
    x_ = activations(b, m, cols_, 12);
    const size_t n = static_cast<size_t>(m) * rows_;
    y_ = b.upload_floats(random_floats(n, 13, 0.0f, 1.0f)), rest_ = outputs(b, n);
  }
  void call(Backend& b, const StepInput& in, int copy) override {
    const Linear& l = linears_[static_cast<size_t>(copy)];
    float* y = copy == 0 ? y_ : rest_;
    if (add_) b.project_add(l, x_, in.m, y);
    else b.project(l, x_, in.m, y);
  }
  std::vector<float> result(Backend& b) override {
    return floats_of(b, y_, static_cast<size_t>(m_) * rows_);
  }
  double bytes(int m) const override {
    return rows_ * (cols_ / 32.0) * 18 + m * (cols_ / 32.0 * 116 + rows_ * (add_ ? 8.0 : 4.0));
  }

 private:
  int rows_, cols_, m_ = 0;
  bool add_;
  std::vector<Linear> linears_;
  Rows x_;
  float *y_ = nullptr, *rest_ = nullptr;
};

// A norm and the projection of its rows.
class NormProjection final : public Operation {
 public:
  NormProjection(int rows, int cols) : rows_(rows), cols_(cols) {}
  void prepare(Backend& b, int m, int copies) override {
    m_ = m;
    linears_ = matrices(b, rows_, cols_, copies);
    const size_t n = static_cast<size_t>(m) * cols_;
    x_ = b.upload_floats(random_floats(n, 14, 0.0f, 2.0f));
    w_ = b.upload_floats(random_floats(static_cast<size_t>(cols_), 15, 1.0f, 0.5f));
    h_ = {outputs(b, n), b.alloc(b.act_bytes(cols_, m))};
    y_ = outputs(b, static_cast<size_t>(m) * rows_);
  }
  void call(Backend& b, const StepInput& in, int copy) override {
    b.norm_project(x_, w_, 1e-6f, linears_[static_cast<size_t>(copy)], in.m, h_, y_);
  }
  std::vector<float> result(Backend& b) override {
    return floats_of(b, y_, static_cast<size_t>(m_) * rows_);
  }
  double bytes(int m) const override {
    return rows_ * (cols_ / 32.0) * 18 + cols_ * 4.0 + m * (cols_ * 4.0 + rows_ * 4.0);
  }

 private:
  int rows_, cols_, m_ = 0;
  std::vector<Linear> linears_;
  const float *x_ = nullptr, *w_ = nullptr;
  Rows h_;
  float* y_ = nullptr;
};

// A norm, gates and ups of its rows, and their swiglu.
class NormSwiglu final : public Operation {
 public:
  void prepare(Backend& b, int m, int copies) override {
    m_ = m;
    const int hidden = c_.hidden, n = c_.intermediate;
    const size_t inputs = static_cast<size_t>(m) * hidden, outs = static_cast<size_t>(m) * n;
    const vcuda_tensor t = synthetic(VCUDA_Q4, 11, 0.2f / std::sqrt(static_cast<float>(hidden)));
    for (int i = 0; i < copies; ++i)
      linears_.push_back(
          {2 * n, hidden, {b.upload_matrix({Tensor{&t, n, hidden}, Tensor{&t, n, hidden}}, true)}});
    x_ = b.upload_floats(random_floats(inputs, 16, 0.0f, 2.0f));
    w_ = b.upload_floats(random_floats(static_cast<size_t>(hidden), 17, 1.0f, 0.5f));
    h_ = {outputs(b, inputs), b.alloc(b.act_bytes(hidden, m))};
    gate_up_ = outputs(b, 2 * outs);
    out_ = {outputs(b, outs), b.alloc(b.act_bytes(n, m))};
  }
  void call(Backend& b, const StepInput& in, int copy) override {
    b.norm_swiglu(x_, w_, 1e-6f, linears_[static_cast<size_t>(copy)], in.m, h_, gate_up_, out_);
  }
  std::vector<float> result(Backend& b) override {
    return floats_of(b, out_.x, static_cast<size_t>(m_) * c_.intermediate);
  }
  double bytes(int m) const override {
    const double n = c_.intermediate, hidden = c_.hidden;
    return 2 * n * (hidden / 32) * 18 + hidden * 4 + m * (hidden * 4 + n * 4 + n / 32 * 116);
  }

 private:
  Config c_ = config_27b();
  int m_ = 0;
  std::vector<Linear> linears_;
  const float *x_ = nullptr, *w_ = nullptr;
  float* gate_up_ = nullptr;
  Rows h_, out_;
};

class Embed final : public Operation {
 public:
  void prepare(Backend& b, int m, int) override {
    m_ = m;
    const vcuda_tensor t = synthetic(VCUDA_BF16, 21, 1.0f);
    w_.embedding = b.upload_embedding(Tensor{&t, c_.vocab, c_.hidden});
    w_.embedding_type = VCUDA_BF16;
    x_ = outputs(b, static_cast<size_t>(m) * c_.hidden);
  }
  void call(Backend& b, const StepInput& in, int) override { b.embed(w_, c_, in, x_); }
  std::vector<float> result(Backend& b) override {
    return floats_of(b, x_, static_cast<size_t>(m_) * c_.hidden);
  }
  double bytes(int m) const override { return m * c_.hidden * 6.0; }

 private:
  Config c_ = [] {
    Config c = config_27b();
    c.vocab = 32768;  // the tokens are below it; the whole table would be two seconds of setup
    return c;
  }();
  Weights w_;
  int m_ = 0;
  float* x_ = nullptr;
};

class Swiglu final : public Operation {
 public:
  void prepare(Backend& b, int m, int) override {
    m_ = m;
    const size_t n = static_cast<size_t>(m) * c_.intermediate;
    gate_up_ = b.upload_floats(random_floats(2 * n, 31, 0.0f, 4.0f));
    out_ = {outputs(b, n), b.alloc(b.act_bytes(c_.intermediate, m))};
  }
  void call(Backend& b, const StepInput& in, int) override {
    b.swiglu(gate_up_, c_.intermediate, in.m, out_);
  }
  std::vector<float> result(Backend& b) override {
    return floats_of(b, out_.x, static_cast<size_t>(m_) * c_.intermediate);
  }
  double bytes(int m) const override {
    return m * (c_.intermediate * 12.0 + c_.intermediate / 32.0 * 116);
  }

 private:
  Config c_ = config_27b();
  int m_ = 0;
  float* gate_up_ = nullptr;
  Rows out_;
};

class Norm final : public Operation {
 public:
  void prepare(Backend& b, int m, int) override {
    m_ = m;
    const size_t h = static_cast<size_t>(c_.hidden), n = static_cast<size_t>(m) * h;
    x_ = b.upload_floats(random_floats(n, 51, 0.1f, 3.0f));
    w_ = b.upload_floats(random_floats(h, 52, 1.0f, 0.25f));
    y_ = {outputs(b, n), b.alloc(b.act_bytes(c_.hidden, m))};
  }
  void call(Backend& b, const StepInput& in, int) override {
    b.rms_norm(x_, w_, c_.hidden, c_.rms_eps, in.m, y_);
  }
  std::vector<float> result(Backend& b) override {
    return floats_of(b, y_.x, static_cast<size_t>(m_) * c_.hidden);
  }
  double bytes(int m) const override { return c_.hidden * (4.0 + m * (8.0 + 116 / 32.0)); }

 private:
  Config c_ = config_27b();
  int m_ = 0;
  float *x_ = nullptr, *w_ = nullptr;
  Rows y_;
};

class Gdn final : public Operation {
 public:
  void prepare(Backend& b, int m, int copies) override {
    m_ = m;
    l_.kind = VCUDA_LAYER_GDN;
    GdnWeights& g = l_.gdn;
    const size_t conv_dim = static_cast<size_t>(c_.conv_dim()),
                 heads = static_cast<size_t>(c_.gdn_v_heads);
    g.conv = b.upload_floats(
        random_floats(static_cast<size_t>(c_.conv_kernel) * conv_dim, 61, 0.0f, 0.8f));
    g.a_neg = b.upload_floats(random_floats(heads, 62, -1.0f, 0.9f));
    g.dt_bias = b.upload_floats(random_floats(heads, 63, -1.5f, 2.5f));
    g.norm = b.upload_floats(random_floats(static_cast<size_t>(c_.gdn_v_dim), 64, 1.0f, 0.25f));
    in_ = b.upload_floats(random_floats(static_cast<size_t>(m) * c_.gdn_rows(), 65, 0.0f, 2.0f));
    out_ = {outputs(b, static_cast<size_t>(m) * c_.value_dim()),
            b.alloc(b.act_bytes(c_.value_dim(), m))};
    const size_t layers = static_cast<size_t>(copies);
    for (StateSlot* slot : {&from_, &to_})
      *slot = {outputs(b, layers * c_.s_size()), outputs(b, layers * c_.conv_size())};
    // The state that eight rows leave behind an empty one.
    b.zero(to_.s, layers * c_.s_size() * sizeof(float));
    b.zero(to_.conv, layers * c_.conv_size() * sizeof(float));
    float* rows = b.upload_floats(random_floats(size_t{8} * c_.gdn_rows(), 66, 0.0f, 2.0f));
    const Rows dropped{outputs(b, size_t{8} * c_.value_dim()),
                       b.alloc(b.act_bytes(c_.value_dim(), 8))};
    const StepInput before{nullptr, 8, 0, 1, &to_, &from_, -1};
    b.begin(before);
    for (l_.index = 0; l_.index < copies; ++l_.index) b.gdn(l_, c_, before, rows, dropped);
  }
  void call(Backend& b, const StepInput& in, int copy) override {
    l_.index = copy;
    b.gdn(l_, c_, in, in_, out_);
  }
  std::vector<float> result(Backend& b) override {
    std::vector<float> v = floats_of(b, out_.x, static_cast<size_t>(m_) * c_.value_dim());
    const size_t n = v.size();
    v.resize(n + c_.s_size() + c_.conv_size());
    b.read_s(c_, to_.s, v.data() + n);
    b.read_conv(c_, to_.conv, v.data() + n + c_.s_size());
    return v;
  }
  double bytes(int m) const override {
    return 8.0 * static_cast<double>(c_.s_size() + c_.conv_size()) + 16.0 * c_.conv_dim() +
           m * (4.0 * c_.gdn_rows() + c_.value_dim() * (4.0 + 116 / 32.0));
  }
  const StateSlot* from() const override { return &from_; }
  const StateSlot* to() const override { return &to_; }

 private:
  Config c_ = config_27b();
  int m_ = 0;
  Layer l_{};
  StateSlot from_, to_;
  float* in_ = nullptr;
  Rows out_;
};

class Attention final : public Operation {
 public:
  explicit Attention(int position) : position_(position) {}
  void prepare(Backend& b, int m, int copies) override {
    m_ = m;
    std::vector<float> frequencies;
    for (int i = 0; i < c_.rotary_dim / 2; ++i)
      frequencies.push_back(static_cast<float>(std::pow(1e7, -2.0 * i / c_.rotary_dim)));
    w_.inv_freq = b.upload_floats(frequencies);
    const size_t d = static_cast<size_t>(c_.head_dim);
    l_.kind = VCUDA_LAYER_ATTENTION;
    l_.attention.q_norm = b.upload_floats(random_floats(d, 41, 1.4f, 0.25f));
    l_.attention.k_norm = b.upload_floats(random_floats(d, 42, 1.4f, 0.25f));
    for (int i = 0; i < copies; ++i) {
      kv_.push_back(b.alloc(b.kv_bytes(c_, context())));
      b.fill_kv(c_, kv_.back(), context(), 0, 0x3d000000u);  // 0.03125: a number, and not zero
    }
    const size_t n = static_cast<size_t>(m) * c_.attention_rows();
    in_ = b.upload_floats(random_floats(n, 43, 0.0f, 1.0f));
    out_ = {outputs(b, static_cast<size_t>(m) * c_.attention_dim()),
            b.alloc(b.act_bytes(c_.attention_dim(), m))};
    // Real keys and values for the last chunks of the context, row by row as a step brings them.
    static const StateSlot none{};
    for (int p = std::max(0, position_ - 64); p < position_; p += 8) {
      float* rows = b.upload_floats(random_floats(size_t{8} * c_.attention_rows(),
                                                  1000 + static_cast<uint64_t>(p), 0.0f, 1.0f));
      const Rows dropped{outputs(b, size_t{8} * c_.attention_dim()),
                         b.alloc(b.act_bytes(c_.attention_dim(), 8))};
      const StepInput in{nullptr, 8, p, context(), &none, &none, -1};
      b.begin(in);
      for (void* kv : kv_) b.attention(l_, c_, w_, in, kv, rows, dropped);
    }
  }
  void call(Backend& b, const StepInput& in, int copy) override {
    b.attention(l_, c_, w_, in, kv_[static_cast<size_t>(copy)], in_, out_);
  }
  std::vector<float> result(Backend& b) override {
    std::vector<float> v = floats_of(b, out_.x, static_cast<size_t>(m_) * c_.attention_dim());
    const int end = position_ + m_;
    for (bool keys : {true, false}) {
      std::vector<float> cache(static_cast<size_t>(c_.kv_rows()) * static_cast<size_t>(end));
      b.read_kv(c_, kv_[0], context(), end, keys, cache.data());
      v.insert(v.end(), cache.begin(), cache.end());
    }
    return v;
  }
  double bytes(int m) const override {
    return 8.0 * c_.kv_rows() * (position_ + m) +
           m * (4.0 * c_.attention_rows() + c_.attention_dim() * (4.0 + 116 / 32.0));
  }
  int position() const override { return position_; }
  int context() const override { return position_ + 64; }

 private:
  Config c_ = config_27b();
  int position_, m_ = 0;
  Layer l_{};
  Weights w_;
  std::vector<void*> kv_;
  float* in_ = nullptr;
  Rows out_;
};

template <class T, class... Arguments>
OperationCase make_case(std::string name, int copies, Arguments... arguments) {
  return {std::move(name), copies, [=] { return std::make_unique<T>(arguments...); }};
}

}  // namespace

Config config_27b() {
  Config c{};
  c.hidden = 5120, c.intermediate = 17408, c.vocab = 248320, c.layers = 64;
  c.q_heads = 24, c.kv_heads = 4, c.head_dim = 256, c.rotary_dim = 64;
  c.gdn_k_heads = 16, c.gdn_v_heads = 48, c.gdn_k_dim = c.gdn_v_dim = 128, c.conv_kernel = 4;
  c.rms_eps = 1e-6f;
  for (int i = 0; i < c.layers; ++i)
    c.kinds.push_back(i % 4 == 3 ? VCUDA_LAYER_ATTENTION : VCUDA_LAYER_GDN);
  return c;
}

std::vector<OperationCase> operation_cases() {
  return {
      make_case<Embed>("embed", 16),
      make_case<Projection>("project gdn in", 8, 16384, 5120, false),
      make_case<Projection>("project attention in", 8, 14336, 5120, false),
      make_case<Projection>("project out", 20, 5120, 6144, true),
      make_case<Projection>("project gate_up", 4, 34816, 5120, false),
      make_case<Projection>("project down", 8, 5120, 17408, true),
      make_case<NormProjection>("norm, gdn in", 8, 16384, 5120),
      make_case<NormProjection>("norm, attention in", 8, 14336, 5120),
      make_case<NormProjection>("norm, gate_up", 4, 34816, 5120),
      make_case<NormSwiglu>("norm, gate_up, swiglu", 4),
      make_case<Projection>("project head", 1, 248320, 5120, false),
      make_case<Norm>("norm", 16),
      make_case<Gdn>("gdn", 16),
      make_case<Swiglu>("swiglu", 16),
      make_case<Attention>("attention at 512", 16, 512),
      make_case<Attention>("attention at 32768", 16, 32768),
  };
}

StepInput step_input(const Operation& o, int m, int graph) {
  static const StateSlot none{};
  static const int32_t tokens[] = {11, 32767, 5, 7777, 13107, 3, 999, 20000};
  return {
      tokens, m, o.position(), o.context(), o.from() ? o.from() : &none, o.to() ? o.to() : &none,
      graph};
}

}  // namespace bench
