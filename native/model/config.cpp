#include "model/config.h"

#include <cmath>

#include "model/error.h"

namespace vcuda {
namespace {

void check(bool ok, const char* field, int value, const char* rule) {
  if (!ok) fail(VCUDA_E_MODEL, "configuration: %s is %d, must be %s", field, value, rule);
}

}  // namespace

Config make_config(const vcuda_config& c) {
  constexpr int kMost =
      1
      << 20;  // keeps every product of two dimensions inside int64 and every row count inside int32
  const struct {
    const char* name;
    int value;
  } positive[] = {
      {"hidden", c.hidden},       {"intermediate", c.intermediate}, {"vocab", c.vocab},
      {"layers", c.layers},       {"q_heads", c.q_heads},           {"kv_heads", c.kv_heads},
      {"head_dim", c.head_dim},   {"gdn_k_heads", c.gdn_k_heads},   {"gdn_v_heads", c.gdn_v_heads},
      {"gdn_k_dim", c.gdn_k_dim}, {"gdn_v_dim", c.gdn_v_dim}};
  for (const auto& p : positive)
    check(p.value >= 1 && p.value <= kMost, p.name, p.value, "1 to 1048576");
  check(c.hidden % 32 == 0, "hidden", c.hidden, "a multiple of 32");
  check(c.intermediate % 32 == 0, "intermediate", c.intermediate, "a multiple of 32");
  check(c.head_dim % 16 == 0 && c.head_dim <= 512, "head_dim", c.head_dim,
        "a multiple of 16, at most 512");
  check(c.gdn_k_dim % 16 == 0 && c.gdn_k_dim <= 512, "gdn_k_dim", c.gdn_k_dim,
        "a multiple of 16, at most 512");
  check(c.gdn_v_dim % 16 == 0 && c.gdn_v_dim <= 512, "gdn_v_dim", c.gdn_v_dim,
        "a multiple of 16, at most 512");
  check(c.q_heads % c.kv_heads == 0, "q_heads", c.q_heads, "a multiple of kv_heads");
  check(c.gdn_v_heads % c.gdn_k_heads == 0, "gdn_v_heads", c.gdn_v_heads,
        "a multiple of gdn_k_heads");
  check(static_cast<int64_t>(c.q_heads) * c.head_dim % 32 == 0, "q_heads", c.q_heads,
        "such that q_heads*head_dim is a multiple of 32");
  check(static_cast<int64_t>(c.gdn_v_heads) * c.gdn_v_dim % 32 == 0, "gdn_v_heads", c.gdn_v_heads,
        "such that gdn_v_heads*gdn_v_dim is a multiple of 32");
  check(static_cast<int64_t>(c.q_heads) * c.head_dim <= kMost, "q_heads", c.q_heads,
        "such that q_heads*head_dim is at most 1048576");
  check(static_cast<int64_t>(c.gdn_v_heads) * (c.gdn_v_dim + c.gdn_k_dim) <= kMost, "gdn_v_heads",
        c.gdn_v_heads, "such that gdn_v_heads*(gdn_k_dim+gdn_v_dim) is at most 1048576");
  check(c.rotary_dim >= 2 && c.rotary_dim % 2 == 0 && c.rotary_dim <= c.head_dim, "rotary_dim",
        c.rotary_dim, "even, 2 to head_dim");
  check(c.conv_kernel >= 2 && c.conv_kernel <= 16, "conv_kernel", c.conv_kernel, "2 to 16");
  check(c.tied == 0 || c.tied == 1, "tied", c.tied, "0 or 1");
  if (!(c.rms_eps >= 0.0f && c.rms_eps < 1.0f))
    fail(VCUDA_E_MODEL, "configuration: rms_eps is %g, must be in [0, 1)",
         static_cast<double>(c.rms_eps));
  if (!c.layer_kinds) fail(VCUDA_E_MODEL, "configuration: layer_kinds is NULL");
  Config made{c.hidden,      c.intermediate, c.vocab,     c.layers,
              c.q_heads,     c.kv_heads,     c.head_dim,  c.rotary_dim,
              c.gdn_k_heads, c.gdn_v_heads,  c.gdn_k_dim, c.gdn_v_dim,
              c.conv_kernel, c.tied == 1,    c.rms_eps,   {}};
  for (int i = 0; i < c.layers; ++i) {
    check(c.layer_kinds[i] <= 1, "a layer's kind", c.layer_kinds[i], "0 (GDN) or 1 (attention)");
    made.kinds.push_back(static_cast<vcuda_layer_kind>(c.layer_kinds[i]));
  }
  return made;
}

}  // namespace vcuda
