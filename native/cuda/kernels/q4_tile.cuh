// The arithmetic of one tile: 16 rows, one group of 32 inputs, 8 rows of activations (bits
// contract, section 3), with few instructions, because their number bounds a projection:
//
// Nibbles are masked and not shifted, so rows 8..15 count sixteenths: their lane sums are 16 times
// the contract's until they are written (unscaled). Powers of two lose no bit: a term is a multiple
// of 2^-145, and the largest exponent of a group keeps everything finite (arith/quant.h).
//
// Integer accumulators start at kMagicBits and so end as floats F = M + s, M = 1.5 * 2^23, of a
// digit's sum s. With the activations' scale x the contract's float(c) * x, c = 65536 s2 + 256 s1 +
// s0, is three fma: t = 65536 x F2 - 65793 M x = x (65536 s2 - 257 M), u = 256 x F1 + t = x (65536
// s2
// + 256 s1 - M), x F0 + u. t and u are exact: multiples of 2^8 x below 2^32 x (rows 8..15: of 2^12
// x, below 2^36 x). The last fma rounds as the contract's conversion of c does, and the scale being
// a power of two, the product with the weights' scale is the contract's term.
#pragma once

#include <type_traits>

#include "kernels/act.cuh"
#include "kernels/mma.cuh"
#include "kernels/q4_layout.cuh"

namespace vcuda::gpu {

// The factors of one row of activations.
struct ActScale {
  float f2, f1, f0, t;
  __device__ __forceinline__ explicit ActScale(float x)
      : f2(65536.0f * x), f1(256.0f * x), f0(x), t(-65793.0f * 12582912.0f * x) {}
  // float(c) * x of three accumulators.
  __device__ __forceinline__ float combine(int d2, int d1, int d0) const {
    using arith::fma32;
    return fma32(__int_as_float(d0), f0,
                 fma32(__int_as_float(d1), f1, fma32(__int_as_float(d2), f2, t)));
  }
};

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
  uint4 hi;  // digit 2: two words, digit 1: two words
  uint2 lo;  // digit 0
  int4 start2, start1, start0;
  float2 scale;
};

template <>
struct ActFragment<true> {
  uint2 hi, lo;  // digit 2 or 1; digit 0
  int4 start21, start0;
  float scale;
};

template <bool Few>
struct ActOffsets {
  int hi, lo, start, scale;
  __device__ __forceinline__ ActOffsets(int lane, int m) {
    const int column = lane / 4, t = lane % 4;
    const int row = min(Few ? column / 2 : column, m - 1), out = min(t, Few ? m - 1 : (m - 1) / 2);
    hi = row * 64 + t * 16 + (Few ? column % 2 * 8 : 0);
    lo = m * 64 + row * 32 + t * 8;
    start = act_start(m) + out * (Few ? 32 : 48);
    scale = act_scale(m) + out * (Few ? 4 : 8);
  }
  __device__ __forceinline__ ActFragment<Few> load(const uint8_t* group) const {
    using Hi = decltype(ActFragment<Few>::hi);
    using Scale = decltype(ActFragment<Few>::scale);
    const Hi digits = *reinterpret_cast<const Hi*>(group + hi);
    const uint2 last = *reinterpret_cast<const uint2*>(group + lo);
    const int4* from = reinterpret_cast<const int4*>(group + start);
    const Scale x = *reinterpret_cast<const Scale*>(group + scale);
    if constexpr (Few) return {digits, last, from[0], from[1], x};
    else return {digits, last, from[0], from[1], from[2], x};
  }
};

// A thread's results of a tile, rows lane/4 and lane/4 + 8. Many rows: columns 2t, 2t+1 of one
// weight row, then of the other; few: column t of each.
template <bool Few>
using TileSum = std::conditional_t<Few, float2, float4>;

// The tiles of one group.
template <bool Few>
struct TileMath {
  ActFragment<Few> x;
  ActScale first, second;  // of column t, or of columns 2t and 2t+1

  __device__ __forceinline__ explicit TileMath(const ActFragment<Few>& fragment)
      : x(fragment), first(column(fragment.scale, 0)), second(column(fragment.scale, 1)) {}
  // scales: the two weight rows' float16.
  __device__ __forceinline__ void add(TileSum<Few>& sum, uint32_t w0, uint32_t w1,
                                      uint32_t scales) const {
    using arith::fma32;
    const uint32_t a[4] = {w0 & 0x0f0f0f0fu, w0 & 0xf0f0f0f0u, w1 & 0x0f0f0f0fu, w1 & 0xf0f0f0f0u};
    const float2 w = __half22float2(*reinterpret_cast<const __half2*>(&scales));
    if constexpr (Few) {
      const int4 hi = imma(a, x.hi.x, x.hi.y, x.start21), lo = imma(a, x.lo.x, x.lo.y, x.start0);
      sum.x = fma32(first.combine(hi.x, hi.y, lo.x), w.x, sum.x);
      sum.y = fma32(first.combine(hi.z, hi.w, lo.z), w.y, sum.y);
    } else {
      const int4 d2 = imma(a, x.hi.x, x.hi.y, x.start2), d1 = imma(a, x.hi.z, x.hi.w, x.start1),
                 d0 = imma(a, x.lo.x, x.lo.y, x.start0);
      sum.x = fma32(first.combine(d2.x, d1.x, d0.x), w.x, sum.x);
      sum.y = fma32(second.combine(d2.y, d1.y, d0.y), w.x, sum.y);
      sum.z = fma32(first.combine(d2.z, d1.z, d0.z), w.y, sum.z);
      sum.w = fma32(second.combine(d2.w, d1.w, d0.w), w.y, sum.w);
    }
  }

 private:
  __device__ __forceinline__ static float column(float x, int) { return x; }
  __device__ __forceinline__ static float column(float2 x, int i) { return i == 0 ? x.x : x.y; }
};

// Lane sums as the contract has them.
__device__ __forceinline__ float2 unscaled(float2 v) { return {v.x, v.y * 0.0625f}; }
__device__ __forceinline__ float4 unscaled(float4 v) {
  return {v.x, v.y, v.z * 0.0625f, v.w * 0.0625f};
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

  // f(y's element, a thread's value of it) for each of a tile's results that exist.
  template <class F>
  __device__ __forceinline__ void each(int tile, int lane, float4& v, F f) const {
    const int row = tile * 16 + lane / 4, column = lane % 4 * 2;
    one(row, column, v.x, f), one(row, column + 1, v.y, f);
    one(row + 8, column, v.z, f), one(row + 8, column + 1, v.w, f);
  }
  template <class F>
  __device__ __forceinline__ void each(int tile, int lane, float2& v, F f) const {
    one(tile * 16 + lane / 4, lane % 4, v.x, f), one(tile * 16 + lane / 4 + 8, lane % 4, v.y, f);
  }
  // What a tile's results are added to: nothing, or y.
  template <class V>
  __device__ __forceinline__ V load(int tile, int lane) const {
    V v{};
    if (add) each(tile, lane, v, [](const float* y, float& to) { to = *y; });
    return v;
  }
  template <class V>
  __device__ __forceinline__ void store(int tile, int lane, V v, V before) const {
    const V sum = ::vcuda::gpu::add(before, v);
    if (add) v = sum;
    each(tile, lane, v, [](float* y, float value) { *y = value; });
  }

 private:
  template <class F>
  __device__ __forceinline__ void one(int row, int column, float& v, F f) const {
    if (row < rows && column < m) f(y + static_cast<size_t>(column) * ld + row, v);
  }
};

}  // namespace vcuda::gpu
