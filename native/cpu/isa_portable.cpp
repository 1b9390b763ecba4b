// Plain C++ for any processor: the obvious loops, and the reference the other instruction sets are
// held against.
#include "cpu/isa.h"

#include "arith/activations.h"
#include "arith/bits.h"
#include "arith/exp.h"
#include "arith/half.h"
#include "arith/quant.h"
#include "arith/sum.h"

namespace vcuda {
namespace portable {
namespace {

using namespace arith;

constexpr int W = 4;
struct F {
  float v[W];
};
template <class Op>
inline F map(Op op) {
  F r;
  for (int i = 0; i < W; ++i) r.v[i] = op(i);
  return r;
}
inline F splat(float x) {
  return map([&](int) { return x; });
}
inline F zero() { return splat(0.0f); }
inline F load(const float* p) {
  return map([&](int i) { return p[i]; });
}
inline void store(float* p, F x) {
  for (int i = 0; i < W; ++i) p[i] = x.v[i];
}
inline F add(F a, F b) {
  return map([&](int i) { return a.v[i] + b.v[i]; });
}
inline F sub(F a, F b) {
  return map([&](int i) { return a.v[i] - b.v[i]; });
}
inline F mul(F a, F b) {
  return map([&](int i) { return a.v[i] * b.v[i]; });
}
inline F fma(F a, F b, F c) {
  return map([&](int i) { return fma32(a.v[i], b.v[i], c.v[i]); });
}

// out [M][16]: c = sum of (weight + 8) * q over the group, minus 8 * sum of q; unsigned, so that a
// wrap is defined.
template <int M>
void project_q4_tile(const uint8_t* tile, int groups, const ActGroup* act, int m, float* out) {
  const uint8_t* w = tile;
  const uint8_t* scales = tile + static_cast<size_t>(groups) * 256;
  float lanes[M][kTileRows][kQ4Lanes];
  for (int lane = 0; lane < kQ4Lanes; ++lane) {
    for (int i = 0; i < M; ++i)
      for (int r = 0; r < kTileRows; ++r) lanes[i][r][lane] = 0.0f;
    for (int g = lane; g < groups; g += kQ4Lanes, w += 256, scales += 2 * kTileRows) {
      for (int i = 0; i < M; ++i) {
        const ActGroup& a = act[static_cast<size_t>(g) * m + i];
        uint32_t c[kTileRows];
        for (uint32_t& sum : c) sum = static_cast<uint32_t>(a.bias);
        for (int k = 0; k < kGroup; ++k) {
          const uint32_t q =
              static_cast<uint32_t>(a.digit[0][k] * 65536 + a.digit[1][k] * 256 + a.digit[2][k]);
          const uint8_t* bytes = w + 64 * (k / 8) + k % 4;
          const int shift = k % 8 < 4 ? 0 : 4;
          for (int r = 0; r < kTileRows; ++r) c[r] += q * ((bytes[4 * r] >> shift) & 15u);
        }
        for (int r = 0; r < kTileRows; ++r) {
          const uint16_t half = static_cast<uint16_t>(scales[2 * r] | scales[2 * r + 1] << 8);
          float& lane_sum = lanes[i][r][lane];
          lane_sum = fma32(static_cast<float>(static_cast<int32_t>(c[r])),
                           half_to_float(half) * a.scale, lane_sum);
        }
      }
    }
  }
  for (int i = 0; i < M; ++i)
    for (int r = 0; r < kTileRows; ++r) out[i * kTileRows + r] = tree_sum<kQ4Lanes>(lanes[i][r]);
}

#include "cpu/kernels.inc"

}  // namespace
}  // namespace portable

extern const Isa kPortable = {
    "portable",         portable::quantize,       portable::project_q4, portable::project_float,
    portable::rms_norm, portable::head_norm,      portable::l2_norm,    portable::conv_silu,
    portable::gdn_head, portable::attention_head, portable::swiglu};

}  // namespace vcuda
