// AVX-512 with VNNI. Built with the instruction set's flags; called only where choose_isa() found
// it.
#include "cpu/isa.h"

#include <immintrin.h>

#include "arith/activations.h"
#include "arith/bits.h"
#include "arith/exp.h"
#include "arith/quant.h"
#include "arith/sum.h"

namespace vcuda {
namespace avx512 {
namespace {

using namespace arith;

constexpr int W = 16;
using F = __m512;
inline F zero() { return _mm512_setzero_ps(); }
inline F splat(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }

inline __m512i broadcast4(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}

// out [M][16]. A vector's 32-bit lane is a row. VPDPBUSD adds four products of an unsigned weight
// and a signed digit; the three digits' sums wrap and combine modulo 2^32, which is exact because c
// fits. bias takes the weights' offset of 8 back.
template <int M>
void project_q4_tile(const uint8_t* tile, int groups, const ActGroup* act, int m, float* out) {
  const uint8_t* w = tile;
  const uint8_t* scales = tile + static_cast<size_t>(groups) * 256;
  const __m512i low = _mm512_set1_epi8(15);
  F tree[5][M];  // tree[k]: the last complete subtree of 2^k lanes; tree[4] is the sum
  for (int lane = 0; lane < kQ4Lanes; ++lane) {
    F sum[M];
    for (int i = 0; i < M; ++i) sum[i] = zero();
    for (int g = lane; g < groups; g += kQ4Lanes, w += 256, scales += 32) {
      __m512i u[8];
      for (int v = 0; v < 4; ++v) {
        const __m512i packed = _mm512_loadu_si512(w + 64 * v);
        u[2 * v] = _mm512_and_si512(packed, low);
        u[2 * v + 1] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low);
      }
      const F weight_scale =
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
      const ActGroup* a = act + static_cast<size_t>(g) * m;
      for (int i = 0; i < M; ++i, ++a) {
        __m512i c2 = _mm512_setzero_si512(), c1 = c2, c0 = _mm512_set1_epi32(a->bias);
        for (int j = 0; j < 8; ++j) {
          c2 = _mm512_dpbusd_epi32(c2, u[j], broadcast4(a->digit[0] + 4 * j));
          c1 = _mm512_dpbusd_epi32(c1, u[j], broadcast4(a->digit[1] + 4 * j));
          c0 = _mm512_dpbusd_epi32(c0, u[j], broadcast4(a->digit[2] + 4 * j));
        }
        const __m512i c = _mm512_add_epi32(
            _mm512_add_epi32(_mm512_slli_epi32(c2, 16), _mm512_slli_epi32(c1, 8)), c0);
        sum[i] = fma(_mm512_cvtepi32_ps(c), mul(weight_scale, splat(a->scale)), sum[i]);
      }
    }
    int level = 0;
    for (; (lane >> level) & 1; ++level)
      for (int i = 0; i < M; ++i) sum[i] = add(tree[level][i], sum[i]);
    for (int i = 0; i < M; ++i) tree[level][i] = sum[i];
  }
  for (int i = 0; i < M; ++i) store(out + i * kTileRows, tree[4][i]);
}
static_assert(kQ4Lanes == 16 && kTileRows == W,
              "the tree has four levels, a vector is a tile's rows");

#include "cpu/kernels.inc"

}  // namespace
}  // namespace avx512

extern const Isa kAvx512 = {
    "avx512",         avx512::quantize,       avx512::project_q4, avx512::project_float,
    avx512::rms_norm, avx512::head_norm,      avx512::l2_norm,    avx512::conv_silu,
    avx512::gdn_head, avx512::attention_head, avx512::swiglu};

}  // namespace vcuda
