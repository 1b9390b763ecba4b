#include "model/weights.h"

#include <map>

#include "arith/exp.h"
#include "model/error.h"
#include "model/tensor.h"

namespace vcuda {
namespace {

const char* type_name(int type) {
  switch (type) {
    case VCUDA_F32: return "float32";
    case VCUDA_F16: return "float16";
    case VCUDA_BF16: return "bfloat16";
    case VCUDA_Q4: return "Q4";
  }
  return "an unknown type";
}

std::string shape_text(const int64_t* shape, int n) {
  std::string text = "[";
  for (int i = 0; i < n; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

int element_bits(int type) { return type == VCUDA_Q4 ? 4 : type == VCUDA_F32 ? 32 : 16; }

class Loader {
 public:
  Loader(Backend& backend, const Config& config, const vcuda_model_desc& desc)
      : b_(backend), c_(config) {
    for (uint64_t i = 0; i < desc.tensor_count; ++i) {
      const vcuda_tensor& t = desc.tensors[i];
      if (t.struct_size < sizeof(vcuda_tensor))
        fail(VCUDA_E_ARGUMENT, "tensor %llu: struct_size %u is too small",
             static_cast<unsigned long long>(i), t.struct_size);
      if (!t.name)
        fail(VCUDA_E_ARGUMENT, "tensor %llu has no name", static_cast<unsigned long long>(i));
      if (!by_name_.emplace(t.name, &t).second) fail(VCUDA_E_MODEL, "%s: given twice", t.name);
    }
  }

  Weights load() {
    Weights w;
    const bool any_attention = c_.count(VCUDA_LAYER_ATTENTION) > 0;
    const Tensor embedding = find("model.embed_tokens.weight", {c_.vocab, c_.hidden}, false);
    w.embedding = b_.upload_embedding(embedding);
    w.embedding_type = static_cast<vcuda_type>(embedding.t->type);
    w.final_norm = vector("model.norm.weight", c_.hidden, 1.0f);
    if (any_attention) {
      const Tensor t = find("rope.inv_freq", {c_.rotary_dim / 2}, false);
      if (t.t->type != VCUDA_F32)
        fail(VCUDA_E_MODEL, "rope.inv_freq: is %s, must be float32", type_name(t.t->type));
      w.inv_freq = vector("rope.inv_freq", c_.rotary_dim / 2, 0.0f);
    }
    for (int i = 0, gdn = 0, attention = 0; i < c_.layers; ++i) {
      const bool is_gdn = c_.kinds[i] == VCUDA_LAYER_GDN;
      w.layers.push_back(layer("model.layers." + std::to_string(i) + ".", c_.kinds[i],
                               is_gdn ? gdn++ : attention++));
    }
    const bool own_head = by_name_.count("lm_head.weight") > 0;
    if (!own_head && !c_.tied)
      fail(VCUDA_E_MODEL, "lm_head.weight: missing, and the configuration is not tied");
    w.head =
        linear({own_head ? "lm_head.weight" : "model.embed_tokens.weight"}, {c_.vocab}, c_.hidden);
    for (const auto& [name, t] : by_name_)
      if (!used_.count(name))
        fail(VCUDA_E_MODEL, "%s: not a tensor of this configuration", name.c_str());
    w.step_bytes = bytes_ - tensor_bytes(*embedding.t) *
                                (own_head ? 1 : 0);  // a step reads one row of the embedding
    w.float_projection = float_projection_;
    return w;
  }

 private:
  Tensor find(const std::string& name, const std::vector<int64_t>& shape, bool q4_allowed) {
    const auto it = by_name_.find(name);
    if (it == by_name_.end())
      fail(VCUDA_E_MODEL, "%s: missing, expected %s", name.c_str(),
           shape_text(shape.data(), static_cast<int>(shape.size())).c_str());
    const vcuda_tensor& t = *it->second;
    const int n = static_cast<int>(shape.size());
    bool same = t.ndim == n;
    for (int i = 0; same && i < n; ++i) same = t.shape[i] == shape[i];
    if (!same)
      fail(VCUDA_E_MODEL, "%s: shape is %s, expected %s", name.c_str(),
           t.ndim >= 0 && t.ndim <= 4 ? shape_text(t.shape, t.ndim).c_str() : "invalid",
           shape_text(shape.data(), n).c_str());
    if (t.type < VCUDA_F32 || t.type > VCUDA_Q4)
      fail(VCUDA_E_MODEL, "%s: type %d is unknown", name.c_str(), t.type);
    if (t.type == VCUDA_Q4 && !q4_allowed)
      fail(VCUDA_E_MODEL, "%s: is Q4, must be a float type", name.c_str());
    if (t.type == VCUDA_Q4 && t.shape[1] % 32 != 0)
      fail(VCUDA_E_MODEL, "%s: shape is %s, Q4 needs a multiple of 32 columns", name.c_str(),
           shape_text(t.shape, n).c_str());
    if (t.type == VCUDA_Q4 && t.data && !t.scales)
      fail(VCUDA_E_MODEL, "%s: is Q4 without scales", name.c_str());
    if (used_.emplace(name, true).second) bytes_ += tensor_bytes(t);
    int64_t cols = 1;
    for (int i = 1; i < n; ++i) cols *= shape[i];
    return {&t, shape[0], cols};
  }

  static uint64_t tensor_bytes(const vcuda_tensor& t) {
    uint64_t n = 1;
    for (int i = 0; i < t.ndim; ++i) n *= static_cast<uint64_t>(t.shape[i]);
    return n * element_bits(t.type) / 8 + (t.type == VCUDA_Q4 ? n / 16 : 0);
  }

  // A small tensor as float32 in host memory.
  std::vector<float> floats(const std::string& name, const std::vector<int64_t>& shape) {
    const Tensor t = find(name, shape, false);
    std::vector<float> out(static_cast<size_t>(t.rows * t.cols));
    for (size_t i = 0; i < out.size(); ++i) out[i] = tensor_float(*t.t, i);
    return out;
  }

  float* vector(const std::string& name, int n, float add) {
    std::vector<float> v = floats(name, {n});
    for (float& x : v) x += add;
    return b_.upload_floats(v);
  }

  float* decay(const std::string& name, int n) {
    std::vector<float> v = floats(name, {n});
    for (float& x : v) x = -arith::exp32(x);
    return b_.upload_floats(v);
  }

  // [channels, 1, taps] -> [taps, channels], so that neighbouring channels are neighbours in
  // memory.
  float* conv(const std::string& name, int channels, int taps) {
    const std::vector<float> v = floats(name, {channels, 1, taps});
    std::vector<float> by_tap(v.size());
    for (int i = 0; i < channels; ++i)
      for (int j = 0; j < taps; ++j)
        by_tap[static_cast<size_t>(j) * channels + i] = v[static_cast<size_t>(i) * taps + j];
    return b_.upload_floats(by_tap);
  }

  // Stacks tensors over the same inputs; neighbours of one kind (Q4 or float) make one part.
  Linear linear(const std::vector<std::string>& names, const std::vector<int>& rows, int cols,
                bool gated = false) {
    Linear l;
    l.cols = cols;
    std::vector<Tensor> run;
    auto flush = [&] {
      if (run.empty()) return;
      Part part = b_.upload_matrix(run, gated && run.size() == names.size());
      part.row0 = l.rows;
      l.rows += part.rows;
      l.parts.push_back(part);
      run.clear();
    };
    for (size_t i = 0; i < names.size(); ++i) {
      const Tensor t = find(names[i], {rows[i], cols}, true);
      if (!run.empty() && (run[0].t->type == VCUDA_Q4) != (t.t->type == VCUDA_Q4)) flush();
      run.push_back(t);
      const bool float_by_design = names[i].find("in_proj_a.") != names[i].npos ||
                                   names[i].find("in_proj_b.") != names[i].npos;
      if (t.t->type != VCUDA_Q4 && !float_by_design && float_projection_.empty())
        float_projection_ = names[i];
    }
    flush();
    return l;
  }

  Layer layer(const std::string& p, vcuda_layer_kind kind, int index) {
    Layer l{};
    l.kind = kind;
    l.index = index;
    l.input_norm = vector(p + "input_layernorm.weight", c_.hidden, 1.0f);
    l.post_norm = vector(p + "post_attention_layernorm.weight", c_.hidden, 1.0f);
    if (kind == VCUDA_LAYER_GDN) {
      const std::string g = p + "linear_attn.";
      l.gdn.in = linear({g + "in_proj_qkv.weight", g + "in_proj_z.weight", g + "in_proj_b.weight",
                         g + "in_proj_a.weight"},
                        {c_.conv_dim(), c_.value_dim(), c_.gdn_v_heads, c_.gdn_v_heads}, c_.hidden);
      l.gdn.out = linear({g + "out_proj.weight"}, {c_.hidden}, c_.value_dim());
      l.gdn.conv = conv(g + "conv1d.weight", c_.conv_dim(), c_.conv_kernel);
      l.gdn.a_neg = decay(g + "A_log", c_.gdn_v_heads);
      l.gdn.dt_bias = vector(g + "dt_bias", c_.gdn_v_heads, 0.0f);
      l.gdn.norm = vector(g + "norm.weight", c_.gdn_v_dim, 0.0f);
    } else {
      const std::string a = p + "self_attn.";
      l.attention.in = linear({a + "q_proj.weight", a + "k_proj.weight", a + "v_proj.weight"},
                              {c_.q_rows(), c_.kv_rows(), c_.kv_rows()}, c_.hidden);
      l.attention.out = linear({a + "o_proj.weight"}, {c_.hidden}, c_.attention_dim());
      l.attention.q_norm = vector(a + "q_norm.weight", c_.head_dim, 1.0f);
      l.attention.k_norm = vector(a + "k_norm.weight", c_.head_dim, 1.0f);
    }
    l.gate_up = linear({p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight"},
                       {c_.intermediate, c_.intermediate}, c_.hidden, true);
    l.down = linear({p + "mlp.down_proj.weight"}, {c_.hidden}, c_.intermediate);
    return l;
  }

  Backend& b_;
  const Config& c_;
  std::map<std::string, const vcuda_tensor*> by_name_;
  std::map<std::string, bool> used_;
  uint64_t bytes_ = 0;
  std::string float_projection_;
};

}  // namespace

Weights load_weights(Backend& backend, const Config& config, const vcuda_model_desc& desc) {
  return Loader(backend, config, desc).load();
}

}  // namespace vcuda
