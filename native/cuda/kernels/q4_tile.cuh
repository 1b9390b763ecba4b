// The arithmetic of one tile: 16 rows, one group of 32 inputs, 8 rows of activations (bits
// contract, section 3), with few instructions, because their number bounds a projection:
//
// Nibbles are masked and not shifted, so rows 8..15 count sixteenths: their lane sums are 16 times
// the contract's until they are written (unscaled). Powers of two lose no bit: a term is a multiple
// of 2^-145, and the largest exponent of a group keeps everything finite (arith/quant.h).
//
// Integer accumulators start at kMagicBits and so end as floats F = M + s, M = 1.5 * 2^23, of a
// digit's sum s. With the activations' scale x the contract's float(c) * x, c = 65536 s2 + 256 s1 +
// s0, is three fma: t = 65536 x F2 - 65793 M x = x (65536 s2 - 257 M), then u = 256 x F1 + t, which
// is x (65536 s2 + 256 s1 - M), then x F0 + u. t and u are exact: multiples of 2^8 x below 2^32 x
// (rows 8..15: of 2^12 x, below 2^36 x). The last fma rounds as the contract's conversion of c
// does, and the scale being a power of two, the product with the weights' scale is the contract's
// term.
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

// How an instruction's eight columns are used. With more rows of activations than four they are
// rows, and each digit takes an instruction. With few rows they are rows times two digits, two
// instructions. With one or two rows half of those would be empty, so the tiles of a pair share
// accumulators, each with columns of its own and zeros in the other's: what follows the
// instructions is done once for both.
enum class Form { kPairs, kFew, kMany };
__host__ __device__ __forceinline__ constexpr Form form_of(int m) {
  return m <= 2 ? Form::kPairs : few_rows(m) ? Form::kFew : Form::kMany;
}
// Tiles that share accumulators, and accumulators of so many tiles.
__host__ __device__ __forceinline__ constexpr int together(Form f) {
  return f == Form::kPairs ? 2 : 1;
}
__host__ __device__ __forceinline__ constexpr int tile_sums(int tiles, Form f) {
  return (tiles + together(f) - 1) / together(f);
}

// What a thread needs of a group's activations, and where it finds it. lane = 4 * column + t.
//
// Many rows: the thread gets the sums of columns 2t and 2t+1. Few: columns 2j and 2j+1 are digits 2
// and 1 of row j, and of a second instruction column 2j is digit 0, so that all digits of row t
// meet in thread t. Pairs: thread t has row t % 2 of the pair's tile t / 2. Threads of rows beyond
// m read one that exists: columns are independent, and those results are dropped.
struct FewFragment {  // and pairs
  uint2 hi, lo;       // digit 2 or 1; digit 0
  int4 start21, start0;
  float scale;
};
struct ManyFragment {
  uint4 hi;  // digit 2: two words, digit 1: two words
  uint2 lo;  // digit 0
  int4 start2, start1, start0;
  float2 scale;
};

template <Form F>
struct ActOffsets {
  int hi, lo, start, scale;
  __device__ __forceinline__ ActOffsets(int lane, int m) {
    constexpr bool kOne = F != Form::kMany;  // a thread has the results of one row
    const int column = lane / 4, t = lane % 4;
    auto pair = [](int row) { return F == Form::kPairs ? row % 2 : row; };
    const int row = min(pair(kOne ? column / 2 : column), m - 1),
              out = min(pair(t), kOne ? m - 1 : (m - 1) / 2);
    hi = row * 64 + t * 16 + (kOne ? column % 2 * 8 : 0);
    lo = m * 64 + row * 32 + t * 8;
    start = act_start(m) + out * (kOne ? 32 : 48);
    scale = act_scale(m) + out * (kOne ? 4 : 8);
  }
  using Fragment = std::conditional_t<F == Form::kMany, ManyFragment, FewFragment>;
  __device__ __forceinline__ Fragment load(const uint8_t* group) const {
    using Hi = decltype(Fragment::hi);
    using Scale = decltype(Fragment::scale);
    const Hi digits = *reinterpret_cast<const Hi*>(group + hi);
    const uint2 last = *reinterpret_cast<const uint2*>(group + lo);
    const int4* from = reinterpret_cast<const int4*>(group + start);
    const Scale x = *reinterpret_cast<const Scale*>(group + scale);
    if constexpr (F == Form::kMany) return {digits, last, from[0], from[1], from[2], x};
    else return {digits, last, from[0], from[1], x};
  }
};

// A thread's results of a tile, or of a pair's tiles, rows lane/4 and lane/4 + 8. Many rows:
// columns 2t, 2t+1 of one weight row, then of the other; few: row t of each; pairs: row t % 2 of
// tile t / 2.
template <Form F>
using TileSum = std::conditional_t<F == Form::kMany, float4, float2>;

// A pair's second tile's results, where a tile of its own has them.
__device__ __forceinline__ float2 second_of_pair(float2 v) {
  return {__shfl_xor_sync(kFull, v.x, 2), __shfl_xor_sync(kFull, v.y, 2)};
}

// The instruction's 16 rows of weights.
struct TileWords {
  uint32_t a[4];
  __device__ __forceinline__ explicit TileWords(const uint32_t (&w)[2])
      : a{w[0] & 0x0f0f0f0fu, w[0] & 0xf0f0f0f0u, w[1] & 0x0f0f0f0fu, w[1] & 0xf0f0f0f0u} {}
};

// The tiles of one group: add() takes a tile's words, or both of a pair's, and the float16 scales
// of the thread's two weight rows.
template <Form F>
struct TileMath;

template <>
struct TileMath<Form::kFew> {
  FewFragment x;
  ActScale row;

  __device__ __forceinline__ TileMath(const FewFragment& fragment, int)
      : x(fragment), row(fragment.scale) {}
  __device__ __forceinline__ void add(float2& sum, const uint32_t (&words)[2],
                                      uint32_t scales) const {
    const TileWords w(words);
    scale(sum, imma(w.a, x.hi.x, x.hi.y, x.start21), imma(w.a, x.lo.x, x.lo.y, x.start0), scales);
  }

 protected:
  __device__ __forceinline__ void scale(float2& sum, int4 upper, int4 lower,
                                        uint32_t scales) const {
    const float2 w = __half22float2(*reinterpret_cast<const __half2*>(&scales));
    sum.x = arith::fma32(row.combine(upper.x, upper.y, lower.x), w.x, sum.x);
    sum.y = arith::fma32(row.combine(upper.z, upper.w, lower.z), w.y, sum.y);
  }
};

template <>
struct TileMath<Form::kPairs> : TileMath<Form::kFew> {
  uint2 hi[2], lo[2];  // of each tile, zeros where the other's columns are

  __device__ __forceinline__ TileMath(const FewFragment& fragment, int lane)
      : TileMath<Form::kFew>(fragment, lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool here = lane / 16 == i;
      hi[i] = {here ? x.hi.x : 0u, here ? x.hi.y : 0u};
      lo[i] = {here ? x.lo.x : 0u, here ? x.lo.y : 0u};
    }
  }
  __device__ __forceinline__ void add(float2& sum, const uint32_t (&words)[2],
                                      uint32_t scales) const {
    const TileWords w(words);
    scale(sum, upper(w, 0, x.start21), lower(w, 0, x.start0), scales);
  }
  __device__ __forceinline__ void add(float2& sum, const uint32_t (&one)[2],
                                      const uint32_t (&other)[2], uint32_t scales) const {
    const TileWords v(one), w(other);
    scale(sum, upper(w, 1, upper(v, 0, x.start21)), lower(w, 1, lower(v, 0, x.start0)), scales);
  }

 private:
  __device__ __forceinline__ int4 upper(const TileWords& w, int i, int4 start) const {
    return imma(w.a, hi[i].x, hi[i].y, start);
  }
  __device__ __forceinline__ int4 lower(const TileWords& w, int i, int4 start) const {
    return imma(w.a, lo[i].x, lo[i].y, start);
  }
};

template <>
struct TileMath<Form::kMany> {
  ManyFragment x;
  ActScale first, second;  // of columns 2t and 2t+1

  __device__ __forceinline__ TileMath(const ManyFragment& fragment, int)
      : x(fragment), first(fragment.scale.x), second(fragment.scale.y) {}
  __device__ __forceinline__ void add(float4& sum, const uint32_t (&words)[2],
                                      uint32_t scales) const {
    using arith::fma32;
    const TileWords v(words);
    const float2 w = __half22float2(*reinterpret_cast<const __half2*>(&scales));
    const int4 d2 = imma(v.a, x.hi.x, x.hi.y, x.start2), d1 = imma(v.a, x.hi.z, x.hi.w, x.start1),
               d0 = imma(v.a, x.lo.x, x.lo.y, x.start0);
    sum.x = fma32(first.combine(d2.x, d1.x, d0.x), w.x, sum.x);
    sum.y = fma32(second.combine(d2.y, d1.y, d0.y), w.x, sum.y);
    sum.z = fma32(first.combine(d2.z, d1.z, d0.z), w.y, sum.z);
    sum.w = fma32(second.combine(d2.w, d1.w, d0.w), w.y, sum.w);
  }
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
