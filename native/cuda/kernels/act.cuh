// Quantized activations (arith/quant.h) in the order of mma.sync.m16n8k32's B fragment.
//
// Rows in blocks of 8; a block of m rows is [groups] of act_stride(m) bytes. Of one group:
//   hi [m][4][16]: thread t of a row: digit 2 of inputs 4t..4t+3 and 16+4t..16+4t+3, then digit 1
//   of the same lo [m][4][8]:  digit 0 likewise bias [pairs of rows][16]: b, b', b, b' with b = -8
//   * sum q (weights are stored as 0..15): an accumulator's start scale [pairs of rows][8]: float
//   scales of the two rows
#pragma once

#include "arith/quant.h"
#include "kernels/common.cuh"

namespace vcuda::gpu {

__host__ __device__ __forceinline__ int act_stride(int m) {
  return m * 96 + ((m + 1) / 2 * 24 + 15) / 16 * 16;
}

__host__ __device__ __forceinline__ size_t act_block_offset(int groups, int block) {
  return static_cast<size_t>(block) * groups * act_stride(kRowBlock);
}

// A warp holds one group of row `row` of m: lane k has input k. Writes the group's part of act.
__device__ __forceinline__ void quantize_group(float x, int lane, uint8_t* act, int groups,
                                               int group, int row, int m) {
  const uint32_t most = warp_max(arith::as_bits(x) & 0x7fffffffu);
  const int e = arith::group_exponent(most);
  const int32_t q = e > 127 || most == 0 ? 0 : arith::fixed_point(x, e);
  const int32_t sum = warp_sum(q);
  int8_t d2, d1, d0;
  arith::split_digits(q, d2, d1, d0);

  // Four neighbours' bytes make a word; lane 4j ends up with the words of inputs 4j..4j+3.
  uint32_t hi = static_cast<uint8_t>(d2) | static_cast<uint32_t>(static_cast<uint8_t>(d1))
                                               << 16;  // bytes 0 and 2
  uint32_t lo = static_cast<uint8_t>(d0);
  hi |= __shfl_down_sync(kFull, hi, 1) << 8;  // d2 of k, k+1 | d1 of k, k+1
  lo |= __shfl_down_sync(kFull, lo, 1) << 8;
  const uint32_t hi2 = __shfl_down_sync(kFull, hi, 2);
  lo |= __shfl_down_sync(kFull, lo, 2) << 16;

  const int block = row / kRowBlock, rows = min(m - block * kRowBlock, kRowBlock),
            r = row % kRowBlock;
  uint8_t* to =
      act + act_block_offset(groups, block) + static_cast<size_t>(group) * act_stride(rows);
  if (lane % 4 == 0) {
    const int half = lane / 16, t = lane % 16 / 4;
    uint32_t* words = reinterpret_cast<uint32_t*>(to + r * 64 + t * 16);
    words[half] = (hi & 0xffffu) | hi2 << 16;
    words[2 + half] = hi >> 16 | (hi2 & 0xffff0000u);
    *reinterpret_cast<uint32_t*>(to + rows * 64 + r * 32 + t * 8 + half * 4) = lo;
  }
  if (lane == 0) {
    int* bias = reinterpret_cast<int*>(to + rows * 96 + r / 2 * 16);
    bias[r % 2] = bias[2 + r % 2] = -8 * sum;
    reinterpret_cast<float*>(to + rows * 96 + (rows + 1) / 2 * 16)[r] = arith::exponent_to_scale(e);
  }
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
  const int e = arith::group_exponent(most);
  int sum = 0;
  uint32_t words[3] = {};  // digits 2, 1, 0 of the four inputs
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t q = e > 127 || most == 0 ? 0 : arith::fixed_point(v[i], e);
    sum += q;
    int8_t d[3];
    arith::split_digits(q, d[0], d[1], d[2]);
#pragma unroll
    for (int j = 0; j < 3; ++j)
      words[j] |= static_cast<uint32_t>(static_cast<uint8_t>(d[j])) << (8 * i);
  }
#pragma unroll
  for (int n = 1; n < 8; n *= 2) sum += __shfl_xor_sync(kFull, sum, n);
  if (group >= groups) return;

  const int block = row / kRowBlock, rows = min(m - block * kRowBlock, kRowBlock),
            r = row % kRowBlock, half = lane % 8 / 4, t = lane % 4;
  uint8_t* to =
      act + act_block_offset(groups, block) + static_cast<size_t>(group) * act_stride(rows);
  uint32_t* hi = reinterpret_cast<uint32_t*>(to + r * 64 + t * 16);
  hi[half] = words[0], hi[2 + half] = words[1];
  *reinterpret_cast<uint32_t*>(to + rows * 64 + r * 32 + t * 8 + half * 4) = words[2];
  if (lane % 8 == 0) {
    int* bias = reinterpret_cast<int*>(to + rows * 96 + r / 2 * 16);
    bias[r % 2] = bias[2 + r % 2] = -8 * sum;
    reinterpret_cast<float*>(to + rows * 96 + (rows + 1) / 2 * 16)[r] = arith::exponent_to_scale(e);
  }
}

}  // namespace vcuda::gpu
