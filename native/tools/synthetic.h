// The synthetic models of pyharness/inputs/synthetic.py: same names, shapes, types and streams.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "model/error.h"
#include "vllm_cuda.h"

namespace bench {

using vcuda::fail;

inline uint64_t fnv1a(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325ull;
  for (unsigned char c : text) value = (value ^ c) * 0x100000001b3ull;
  return value;
}

class Synthetic {
 public:
  Synthetic(const std::string& family, const std::string& size, uint64_t seed) : seed_(seed) {
    c_.struct_size = sizeof c_;
    int layers = 16;
    if (size == "tiny") {
      c_.hidden = 160, c_.intermediate = 608, c_.vocab = 512, c_.q_heads = 4, c_.kv_heads = 2,
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

}  // namespace bench
