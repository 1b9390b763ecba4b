// AVX2 with FMA and F16C. Built with the instruction set's flags; called only where choose_isa()
// found it.
#include "cpu/isa.h"

#include <immintrin.h>

#include "arith/activations.h"
#include "arith/bits.h"
#include "arith/exp.h"
#include "arith/quant.h"
#include "arith/sum.h"

namespace vcuda {
namespace avx2 {
namespace {

using namespace arith;

constexpr int W = 8;
using F = __m256;
inline F zero() { return _mm256_setzero_ps(); }
inline F splat(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }

// Sum of 32 products per row for one digit. VPMADDUBSW adds two products (at most 2*15*128) into 16
// bits; eight of them reach 30720, so the group's sum never saturates, and VPMADDWD widens once.
inline __m256i digit_sum(const __m256i u[8], const int8_t* digit) {
  __m256i sum = _mm256_setzero_si256();
  for (int j = 0; j < 8; ++j) {
    int32_t x;
    __builtin_memcpy(&x, digit + 4 * j, 4);
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(u[j], _mm256_set1_epi32(x)));
  }
  return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

// out [M][16], as two halves of 8 rows; see isa_avx512.cpp.
template <int M>
void project_q4_tile(const uint8_t* tile, int groups, const ActGroup* act, int m, float* out) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* w = tile + 32 * half;
    const uint8_t* scales = tile + static_cast<size_t>(groups) * 256 + 16 * half;
    F tree[5][M];
    for (int lane = 0; lane < kQ4Lanes; ++lane) {
      F sum[M];
      for (int i = 0; i < M; ++i) sum[i] = zero();
      for (int g = lane; g < groups; g += kQ4Lanes, w += 256, scales += 32) {
        __m256i u[8];
        for (int v = 0; v < 4; ++v) {
          const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 64 * v));
          u[2 * v] = _mm256_and_si256(packed, low);
          u[2 * v + 1] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
        }
        const F weight_scale =
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
        const ActGroup* a = act + static_cast<size_t>(g) * m;
        for (int i = 0; i < M; ++i, ++a) {
          const __m256i high = _mm256_add_epi32(_mm256_slli_epi32(digit_sum(u, a->digit[0]), 16),
                                                _mm256_slli_epi32(digit_sum(u, a->digit[1]), 8));
          const __m256i c = _mm256_add_epi32(
              high, _mm256_add_epi32(digit_sum(u, a->digit[2]), _mm256_set1_epi32(a->bias)));
          sum[i] = fma(_mm256_cvtepi32_ps(c), mul(weight_scale, splat(a->scale)), sum[i]);
        }
      }
      int level = 0;
      for (; (lane >> level) & 1; ++level)
        for (int i = 0; i < M; ++i) sum[i] = add(tree[level][i], sum[i]);
      for (int i = 0; i < M; ++i) tree[level][i] = sum[i];
    }
    for (int i = 0; i < M; ++i) store(out + i * kTileRows + 8 * half, tree[4][i]);
  }
}
static_assert(kQ4Lanes == 16 && kTileRows == 2 * W,
              "the tree has four levels, two vectors are a tile's rows");

#include "cpu/kernels.inc"

}  // namespace
}  // namespace avx2

extern const Isa kAvx2 = {
    "avx2",         avx2::quantize,       avx2::project_q4, avx2::project_float,
    avx2::rms_norm, avx2::head_norm,      avx2::l2_norm,    avx2::conv_silu,
    avx2::gdn_head, avx2::attention_head, avx2::swiglu};

}  // namespace vcuda
