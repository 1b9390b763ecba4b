// The model's dimensions and where each projection's rows lie. Names as in vllm_cuda.h.
#pragma once

#include <cstddef>
#include <vector>

#include "vllm_cuda.h"

namespace vcuda {

struct Config {
  int hidden, intermediate, vocab, layers;
  int q_heads, kv_heads, head_dim, rotary_dim;
  int gdn_k_heads, gdn_v_heads, gdn_k_dim, gdn_v_dim, conv_kernel;
  bool tied;
  float rms_eps;
  std::vector<vcuda_layer_kind> kinds;  // [layers]

  int key_dim() const { return gdn_k_heads * gdn_k_dim; }
  int value_dim() const { return gdn_v_heads * gdn_v_dim; }
  int conv_dim() const { return 2 * key_dim() + value_dim(); }
  int q_rows() const { return 2 * q_heads * head_dim; }  // per head: D query rows, then D gate rows
  int kv_rows() const { return kv_heads * head_dim; }
  int attention_dim() const { return q_heads * head_dim; }  // columns of o_proj

  // Rows of a layer's first projection, in this order: GDN qkv | z | b | a; attention q and gate |
  // k | v.
  int gdn_rows() const { return conv_dim() + value_dim() + 2 * gdn_v_heads; }
  int attention_rows() const { return q_rows() + 2 * kv_rows(); }

  int count(vcuda_layer_kind kind) const {
    int n = 0;
    for (vcuda_layer_kind k : kinds) n += k == kind;
    return n;
  }
  // GDN state of one layer, in floats.
  size_t s_size() const { return static_cast<size_t>(gdn_v_heads) * gdn_k_dim * gdn_v_dim; }
  size_t conv_size() const { return static_cast<size_t>(conv_kernel - 1) * conv_dim(); }
};

// Checks every field; VCUDA_E_MODEL with the field's name and value when one is out of range.
Config make_config(const vcuda_config& c);

}  // namespace vcuda
