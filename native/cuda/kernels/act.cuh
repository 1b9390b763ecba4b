// Quantized activations (arith/quant.h) as the B fragments of mma.sync.m16n8k16 over float16.
//
// q = 4096 * high + low, high in [-1024, 1024], low in [-2048, 2047]: integers that float16 holds
// exactly, also times a power of two. A group whose exponent e lies in [kLeastExponent,
// kMostExponent] is stored as high * 2^(e-1) and low * 2^(e-1), and its factor is 1; another one as
// high and low, and its factor is 2^(e-1), by which the projection multiplies. q4_tile.cuh says why
// 2^(e-1), and why every sum is exact.
//
// Rows in blocks of 8; a block of m rows is [groups] of act_stride(m) bytes. Of one group:
//   digits [m][high, low][4][16]: thread t: inputs (4t, 4t+2), (4t+1, 4t+3), 16 + the same
//   bias   [m][16]: b, b', 16 b, 16 b' with b = -8 * sum high, b' = -8 * sum low, as the
//          accumulators count (weights are stored as 0..15): their starts
//   factor [m] floats, padded to 16 bytes
#pragma once

#include "arith/quant.h"
#include "kernels/common.cuh"

namespace vcuda::gpu {

constexpr int kLeastExponent = -23, kMostExponent = 5;

__host__ __device__ __forceinline__ int act_stride(int m) { return m * 144 + (m + 3) / 4 * 16; }

__host__ __device__ __forceinline__ size_t act_block_offset(int groups, int block) {
  return static_cast<size_t>(block) * groups * act_stride(kRowBlock);
}

// One group of row `row` of m, as one thread sees it: its exponent, and where the group lies.
struct ActGroup {
  uint8_t* digits;  // of the row
  float4* bias;
  float* factor;
  int e;
  bool zero, plain;  // no input counts; the factor is 1

  // most: the largest |x| of the group as bits.
  __device__ __forceinline__ ActGroup(uint32_t most, uint8_t* act, int groups, int group, int row,
                                      int m) {
    const int block = row / kRowBlock, rows = min(m - block * kRowBlock, kRowBlock),
              r = row % kRowBlock;
    uint8_t* to =
        act + act_block_offset(groups, block) + static_cast<size_t>(group) * act_stride(rows);
    digits = to + r * 128;
    bias = reinterpret_cast<float4*>(to + rows * 128) + r;
    factor = reinterpret_cast<float*>(to + rows * 144) + r;
    e = arith::group_exponent(most);
    zero = e > 127 || most == 0;
    plain = most == 0 || (e >= kLeastExponent && e <= kMostExponent);
  }
  __device__ __forceinline__ static float power(int n) {  // 2^n, a normal number
    return arith::as_float(static_cast<uint32_t>(n + 127) << 23);
  }
  __device__ __forceinline__ float unit() const { return plain && !zero ? power(e - 1) : 1.0f; }
  // Float16 bits of the high and the low digit of x; adds them to the sums.
  __device__ __forceinline__ uint2 split(float x, int& high_sum, int& low_sum) const {
    const int32_t q = zero ? 0 : arith::fixed_point(x, e), high = (q + 2048) >> 12,
                  low = q - high * 4096;
    high_sum += high, low_sum += low;
    const float u = unit();
    return {__half_as_ushort(__float2half_rn(static_cast<float>(high) * u)),
            __half_as_ushort(__float2half_rn(static_cast<float>(low) * u))};
  }
  // By one thread, which has the group's sums.
  __device__ __forceinline__ void finish(int high_sum, int low_sum) const {
    const float u = unit() * (-8.0f / 16777216.0f), high = static_cast<float>(high_sum) * u,
                low = static_cast<float>(low_sum) * u;
    *bias = {high, low, 16.0f * high, 16.0f * low};
    *factor = plain ? 1.0f : e > 127 ? arith::as_float(0x7fc00000u) : power(e - 1);
  }
};

// A warp holds one group of row `row` of m: lane k has input k.
__device__ __forceinline__ void quantize_group(float x, int lane, uint8_t* act, int groups,
                                               int group, int row, int m) {
  const ActGroup g(warp_max(arith::as_bits(x) & 0x7fffffffu), act, groups, group, row, m);
  int high = 0, low = 0;
  const uint2 own = g.split(x, high, low);
  high = warp_sum(high), low = warp_sum(low);
  const uint32_t both = own.x | own.y << 16, other = __shfl_down_sync(kFull, both, 2);
  if (lane % 4 < 2) {
    uint32_t* to =
        reinterpret_cast<uint32_t*>(g.digits + lane % 16 / 4 * 16) + lane / 16 * 2 + lane % 4;
    to[0] = (both & 0xffffu) | other << 16;
    to[16] = both >> 16 | (other & 0xffff0000u);
  }
  if (lane == 0) g.finish(high, low);
}

// The same where eight neighbouring threads hold a group, thread k of them the inputs 4 k .. 4 k +
// 3: each makes its own words. All 32 lanes are here; groups past the last are not written.
__device__ __forceinline__ void quantize_quad(float4 x, int lane, uint8_t* act, int groups,
                                              int group, int row, int m) {
  const float v[4] = {x.x, x.y, x.z, x.w};
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) most = max(most, arith::as_bits(v[i]) & 0x7fffffffu);
#pragma unroll
  for (int n = 1; n < 8; n *= 2) most = max(most, __shfl_xor_sync(kFull, most, n));
  const ActGroup g(most, act, groups, group, row, m);
  int high = 0, low = 0;
  uint2 d[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = g.split(v[i], high, low);
#pragma unroll
  for (int n = 1; n < 8; n *= 2)
    high += __shfl_xor_sync(kFull, high, n), low += __shfl_xor_sync(kFull, low, n);
  if (group >= groups) return;
  uint2* to = reinterpret_cast<uint2*>(g.digits + lane % 4 * 16) + lane % 8 / 4;
  to[0] = {d[0].x | d[2].x << 16, d[1].x | d[3].x << 16};
  to[8] = {d[0].y | d[2].y << 16, d[1].y | d[3].y << 16};
  if (lane % 8 == 0) g.finish(high, low);
}

}  // namespace vcuda::gpu
