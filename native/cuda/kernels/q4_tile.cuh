// The arithmetic of one tile: 16 rows, one group of 32 inputs, 8 rows of activations (bits
// contract, section 3).
#pragma once

#include <type_traits>

#include "kernels/act.cuh"
#include "kernels/q4_layout.cuh"

namespace vcuda::gpu {

// What a thread needs of a group's activations, and where it finds it. lane = 4 * column + t.
//
// Many rows (Few false): columns are rows of activations, one instruction a digit; the thread gets
// the sums of columns 2t and 2t+1. Few rows: columns 2j and 2j+1 are digits 2 and 1 of row j, and
// of a second instruction column 2j is digit 0: two instructions, and all digits of row t meet in
// thread t. Threads of rows beyond m read one that exists: columns are independent, and those
// results are dropped.
template <bool Few>
struct ActFragment;

template <>
struct ActFragment<false> {
  uint4 hi;   // digit 2: two words, digit 1: two words
  uint2 lo;   // digit 0
  int4 bias;  // accumulators of digit 0 start here
  float2 scale;
};

template <>
struct ActFragment<true> {
  uint2 hi, lo;  // digit 2 or 1; digit 0
  int4 bias;
  float scale;
};

template <bool Few>
struct ActOffsets {
  int hi, lo, bias, scale;
  __device__ __forceinline__ ActOffsets(int lane, int m) {
    const int column = lane / 4, t = lane % 4;
    const int row = min(Few ? column / 2 : column, m - 1), out = min(t, Few ? m - 1 : (m - 1) / 2);
    hi = row * 64 + t * 16 + (Few ? column % 2 * 8 : 0);
    lo = m * 64 + row * 32 + t * 8;
    bias = act_bias(m) + out * 16;
    scale = act_scale(m) + out * (Few ? 4 : 8);
  }
  __device__ __forceinline__ ActFragment<Few> load(const uint8_t* group) const {
    using Hi = decltype(ActFragment<Few>::hi);
    using Scale = decltype(ActFragment<Few>::scale);
    return {*reinterpret_cast<const Hi*>(group + hi), *reinterpret_cast<const uint2*>(group + lo),
            *reinterpret_cast<const int4*>(group + bias),
            *reinterpret_cast<const Scale*>(group + scale)};
  }
};

// d = a * b + c over 16 x 8 x 32: a unsigned, b signed 8-bit.
__device__ __forceinline__ void imma(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                     int c0, int c1, int c2, int c3) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c0), "r"(c1), "r"(c2),
        "r"(c3));
}

// A thread's results of a tile, rows lane/4 and lane/4 + 8. Many rows: columns 2t, 2t+1 of one
// weight row, then of the other; few: column t of each.
template <bool Few>
using TileSum = std::conditional_t<Few, float2, float4>;

__device__ __forceinline__ float combine(int d2, int d1, int d0) {
  return __int2float_rn(d2 * 65536 + (d1 * 256 + d0));
}

// scales: the two weight rows' float16.
template <bool Few>
__device__ __forceinline__ void tile_fma(TileSum<Few>& sum, uint32_t w0, uint32_t w1,
                                         uint32_t scales, const ActFragment<Few>& x) {
  const uint32_t a[4] = {w0 & 0x0f0f0f0fu, (w0 >> 4) & 0x0f0f0f0fu, w1 & 0x0f0f0f0fu,
                         (w1 >> 4) & 0x0f0f0f0fu};
  const float2 s = __half22float2(*reinterpret_cast<const __half2*>(&scales));
  if constexpr (Few) {
    int hi[4], lo[4];
    imma(hi, a, x.hi.x, x.hi.y, 0, 0, 0, 0);
    imma(lo, a, x.lo.x, x.lo.y, x.bias.x, x.bias.y, x.bias.z, x.bias.w);
    sum.x = arith::fma32(combine(hi[0], hi[1], lo[0]), s.x * x.scale, sum.x);
    sum.y = arith::fma32(combine(hi[2], hi[3], lo[2]), s.y * x.scale, sum.y);
  } else {
    int d2[4], d1[4], d0[4];
    imma(d2, a, x.hi.x, x.hi.y, 0, 0, 0, 0);
    imma(d1, a, x.hi.z, x.hi.w, 0, 0, 0, 0);
    imma(d0, a, x.lo.x, x.lo.y, x.bias.x, x.bias.y, x.bias.z, x.bias.w);
    sum.x = arith::fma32(combine(d2[0], d1[0], d0[0]), s.x * x.scale.x, sum.x);
    sum.y = arith::fma32(combine(d2[1], d1[1], d0[1]), s.x * x.scale.y, sum.y);
    sum.z = arith::fma32(combine(d2[2], d1[2], d0[2]), s.y * x.scale.x, sum.z);
    sum.w = arith::fma32(combine(d2[3], d1[3], d0[3]), s.y * x.scale.y, sum.w);
  }
}

__device__ __forceinline__ float2 add(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The adjacency tree over L values stride apart.
template <int L, class V>
__device__ __forceinline__ V tree(const V* v, int stride) {
  if constexpr (L == 1) return v[0];
  else return add(tree<L / 2>(v, stride), tree<L / 2>(v + (L / 2) * stride, stride));
}

// Where a projection's results go.
struct Output {
  float* y;  // [m, ld]
  int ld, rows, m;
  bool add;  // y += instead of y =

  __device__ __forceinline__ void store(int tile, int lane, float4 v) const {
    const int row = tile * 16 + lane / 4, column = lane % 4 * 2;
    store(row, column, v.x);
    store(row, column + 1, v.y);
    store(row + 8, column, v.z);
    store(row + 8, column + 1, v.w);
  }
  __device__ __forceinline__ void store(int tile, int lane, float2 v) const {
    store(tile * 16 + lane / 4, lane % 4, v.x);
    store(tile * 16 + lane / 4 + 8, lane % 4, v.y);
  }
  __device__ __forceinline__ void store(int row, int column, float v) const {
    if (row >= rows || column >= m) return;
    float* to = y + static_cast<size_t>(column) * ld + row;
    *to = add ? *to + v : v;
  }
};

}  // namespace vcuda::gpu
