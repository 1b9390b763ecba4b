// The arithmetic of one tile: 16 rows, one group of 32 inputs, 8 rows of activations (bits
// contract, section 3).
#pragma once

#include "kernels/act.cuh"
#include "kernels/q4_layout.cuh"

namespace vcuda::gpu {

// What a thread needs of a group's activations: B fragments of the three digits, scale and bias of
// columns 2t and 2t+1.
struct ActFragment {
  uint4 hi;   // digit 2: two words, digit 1: two words
  uint2 lo;   // digit 0
  int4 bias;  // accumulators of digit 0 start here
  float2 scale;
};

// Threads of columns beyond m read a column that exists: columns are independent, and those results
// are dropped.
struct ActOffsets {
  int hi, lo, bias, scale;
  __device__ __forceinline__ ActOffsets(int lane, int m) {
    const int column = min(lane / 4, m - 1), t = lane % 4;
    hi = column * 64 + t * 16;
    lo = m * 64 + column * 32 + t * 8;
    const int pair = min(t, (m - 1) / 2);
    bias = m * 96 + pair * 16;
    scale = m * 96 + (m + 1) / 2 * 16 + pair * 8;
  }
  __device__ __forceinline__ ActFragment load(const uint8_t* group) const {
    return {*reinterpret_cast<const uint4*>(group + hi),
            *reinterpret_cast<const uint2*>(group + lo),
            *reinterpret_cast<const int4*>(group + bias),
            *reinterpret_cast<const float2*>(group + scale)};
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

// sum[0], [1]: row lane/4, columns 2t, 2t+1; sum[2], [3]: row lane/4 + 8. scales: those two rows'
// float16.
__device__ __forceinline__ void tile_fma(float (&sum)[4], uint32_t w0, uint32_t w1, uint32_t scales,
                                         const ActFragment& x) {
  const uint32_t a[4] = {w0 & 0x0f0f0f0fu, (w0 >> 4) & 0x0f0f0f0fu, w1 & 0x0f0f0f0fu,
                         (w1 >> 4) & 0x0f0f0f0fu};
  int d2[4], d1[4], d0[4];
  imma(d2, a, x.hi.x, x.hi.y, 0, 0, 0, 0);
  imma(d1, a, x.hi.z, x.hi.w, 0, 0, 0, 0);
  imma(d0, a, x.lo.x, x.lo.y, x.bias.x, x.bias.y, x.bias.z, x.bias.w);
  const float2 s = __half22float2(*reinterpret_cast<const __half2*>(&scales));
  const float factor[4] = {s.x * x.scale.x, s.x * x.scale.y, s.y * x.scale.x, s.y * x.scale.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int c = d2[i] * 65536 + (d1[i] * 256 + d0[i]);
    sum[i] = arith::fma32(__int2float_rn(c), factor[i], sum[i]);
  }
}

// Tree over `lanes` values stride apart; lanes is 1, 2, 4, 8 or 16.
template <int L>
__device__ __forceinline__ float4 tree4(const float4* v, int stride) {
  if constexpr (L == 1) {
    return v[0];
  } else {
    const float4 a = tree4<L / 2>(v, stride), b = tree4<L / 2>(v + (L / 2) * stride, stride);
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }
}

__device__ __forceinline__ float4 lane_tree(const float4* v, int stride, int lanes) {
  switch (lanes) {
    case 1: return tree4<1>(v, stride);
    case 2: return tree4<2>(v, stride);
    case 4: return tree4<4>(v, stride);
    case 8: return tree4<8>(v, stride);
    default: return tree4<16>(v, stride);
  }
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
  __device__ __forceinline__ void store(int row, int column, float v) const {
    if (row >= rows || column >= m) return;
    float* to = y + static_cast<size_t>(column) * ld + row;
    *to = add ? *to + v : v;
  }
};

}  // namespace vcuda::gpu
