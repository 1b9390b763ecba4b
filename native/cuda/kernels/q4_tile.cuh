// The arithmetic of one tile: 16 rows, one group of 32 inputs, up to 8 rows of activations (bits
// contract, section 3), on the tensor cores' float16.
//
// A nibble in the low bits of a float16 is a denormal: w at bits 0..3 is w * 2^-24, at bits 4..7 it
// is 16 w * 2^-24, so a mask is all that unpacks it. The tile's rows 0..7 are the former,
// rows 8..15 the latter. Products with the activations' digits and their sums are integers below
// 2^24 of one unit: float32 accumulators hold them exactly, in whatever order and width the tensor
// cores add. The contract's float(c), c = 4096 * sum w*high + sum w*low, is then one fma, which
// rounds once.
//
// Units: with digits times 2^(e-1) a sum counts 2^(e-25), which is the contract's scale 2^(e-21)
// over 16, or the scale itself in rows 8..15: no scale is left to multiply by, and lane sums of
// rows 0..7 are 1/16 of the contract's until they are written (unscaled). A sixteenth, because then
// no lane sum can lose a bit to denormals: terms are multiples of 2^(e-25) * 2^-24 >= 2^-149. The
// digits' own range, 2^-24 to 2^15, bounds e (act.cuh); other groups keep their factor for the end.
// Inputs from 2^119 up may overflow where the contract's would not: infinity, so the step is
// refused.
#pragma once

#include "kernels/act.cuh"
#include "kernels/q4_layout.cuh"

namespace vcuda::gpu {

// Columns of an accumulator are rows of activations times digit: one of at most 4 rows, two beyond.
__host__ __device__ __forceinline__ constexpr int act_sets(int m) { return m > 4 ? 2 : 1; }

// What a thread needs of a group's activations: of each set, B fragments (column n of a set is row
// n/2, high or low), and the accumulators' starts and factor of its row t.
template <int Sets>
struct ActFragment {
  uint4 digits[Sets];
  float4 bias[Sets];
  float factor[Sets];

  __device__ __forceinline__ bool plain() const {
    bool all = true;
#pragma unroll
    for (int s = 0; s < Sets; ++s) all = all && factor[s] == 1.0f;
    return __all_sync(kFull, all);
  }
};

// Threads of rows beyond m read a row that exists: columns are independent, and those results are
// dropped.
template <int Sets>
struct ActOffsets {
  int digits[Sets], bias[Sets], factor[Sets];
  __device__ __forceinline__ ActOffsets(int lane, int m) {
    const int t = lane % 4;
#pragma unroll
    for (int s = 0; s < Sets; ++s) {
      const int column_row = min(4 * s + lane / 8, m - 1), row = min(4 * s + t, m - 1);
      digits[s] = column_row * 128 + lane / 4 % 2 * 64 + t * 16;
      bias[s] = m * 128 + row * 16;
      factor[s] = m * 144 + row * 4;
    }
  }
  __device__ __forceinline__ ActFragment<Sets> load(const uint8_t* group) const {
    ActFragment<Sets> x;
#pragma unroll
    for (int s = 0; s < Sets; ++s) {
      x.digits[s] = *reinterpret_cast<const uint4*>(group + digits[s]);
      x.bias[s] = *reinterpret_cast<const float4*>(group + bias[s]);
      x.factor[s] = *reinterpret_cast<const float*>(group + factor[s]);
    }
    return x;
  }
};

// Of each set, a thread's row t of activations with the tile's rows lane/4 and lane/4 + 8.
template <int Sets>
struct alignas(8 * Sets) TileSum {
  float v[Sets][2];
};
template <int Sets>
__device__ __forceinline__ TileSum<Sets> operator+(const TileSum<Sets>& a, const TileSum<Sets>& b) {
  TileSum<Sets> c;
#pragma unroll
  for (int s = 0; s < Sets; ++s)
    c.v[s][0] = a.v[s][0] + b.v[s][0], c.v[s][1] = a.v[s][1] + b.v[s][1];
  return c;
}
// Lane sums as the contract has them.
template <int Sets>
__device__ __forceinline__ TileSum<Sets> unscaled(TileSum<Sets> a) {
#pragma unroll
  for (int s = 0; s < Sets; ++s) a.v[s][0] *= 16.0f;
  return a;
}

// d = a * b + c over 16 x 8 x 16.
__device__ __forceinline__ float4 hmma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float4 c) {
  float4 d;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c.x), "f"(c.y), "f"(c.z),
        "f"(c.w));
  return d;
}

// scales: the float16 of the two rows. Plain: every factor is 1.
template <int Sets, bool Plain>
__device__ __forceinline__ void tile_fma(TileSum<Sets>& sum, uint32_t w0, uint32_t w1,
                                         uint32_t scales, const ActFragment<Sets>& x) {
  constexpr uint32_t kFirst = 0x000f000fu, kSecond = 0x00f000f0u;
  const uint32_t a0[4] = {w0 & kFirst, w0 & kSecond, w0 >> 8 & kFirst, w0 >> 8 & kSecond},
                 a1[4] = {w1 & kFirst, w1 & kSecond, w1 >> 8 & kFirst, w1 >> 8 & kSecond};
  const float2 scale = __half22float2(*reinterpret_cast<const __half2*>(&scales));
#pragma unroll
  for (int s = 0; s < Sets; ++s) {
    const float4 d =
        hmma(a1, x.digits[s].z, x.digits[s].w, hmma(a0, x.digits[s].x, x.digits[s].y, x.bias[s]));
    float c0 = arith::fma32(d.x, 4096.0f, d.y), c1 = arith::fma32(d.z, 4096.0f, d.w);
    if constexpr (!Plain) c0 *= x.factor[s], c1 *= x.factor[s];
    sum.v[s][0] = arith::fma32(c0, scale.x, sum.v[s][0]);
    sum.v[s][1] = arith::fma32(c1, scale.y, sum.v[s][1]);
  }
}

// Tree over L values stride apart.
template <int L, class T>
__device__ __forceinline__ T tree(const T* v, int stride) {
  if constexpr (L == 1) return v[0];
  else return tree<L / 2>(v, stride) + tree<L / 2>(v + (L / 2) * stride, stride);
}

// Where a projection's results go.
struct Output {
  float* y;  // [m, ld]
  int ld, rows, m;
  bool add;  // y += instead of y =

  template <int Sets>
  __device__ __forceinline__ void store(int tile, int lane, const TileSum<Sets>& v) const {
    const int row = tile * 16 + lane / 4, column = lane % 4;
#pragma unroll
    for (int s = 0; s < Sets; ++s) {
      store(row, 4 * s + column, v.v[s][0]);
      store(row + 8, 4 * s + column, v.v[s][1]);
    }
  }
  __device__ __forceinline__ void store(int row, int column, float v) const {
    if (row >= rows || column >= m) return;
    float* to = y + static_cast<size_t>(column) * ld + row;
    *to = add ? *to + v : v;
  }
};

}  // namespace vcuda::gpu
