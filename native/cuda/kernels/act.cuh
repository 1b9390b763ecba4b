// Quantized activations (arith/quant.h) in the order of mma.sync.m16n8k32's B fragment.
//
// Rows in blocks of 8; a block of m rows is [groups] of act_stride(m) bytes. Of one group:
//   hi [m][4][16]: thread t of a row: digit 2 of inputs 4t..4t+3 and 16+4t..16+4t+3, then digit 1
//     of the same
//   lo [m][4][8]: digit 0 likewise
//   start [48 or 32]s: where the digits' accumulators start, as the four registers that each
//     instruction takes: two for the tile's rows 0..7, two for rows 8..15 (q4_tile.cuh). Many rows
//     [pairs of rows][digit 2, 1, 0]: both rows'; few [m][(digits 2, 1), (digit 0, digit 0)].
//   scale [m]: float
// Few rows are at most 4: their digits 2 and 1 share an instruction (q4_tile.cuh).
#pragma once

#include "arith/quant.h"
#include "kernels/common.cuh"

namespace vcuda::gpu {

// Whether a block of m rows has this form.
__host__ __device__ __forceinline__ constexpr bool few_rows(int m) { return m <= 4; }

__host__ __device__ __forceinline__ int act_start(int m) { return m * 96; }  // offsets in a group
__host__ __device__ __forceinline__ int act_scale(int m) {
  return m * 96 + (few_rows(m) ? m * 32 : (m + 1) / 2 * 48);
}
__host__ __device__ __forceinline__ int act_stride(int m) {
  return (act_scale(m) + m * 4 + 15) / 16 * 16;
}

__host__ __device__ __forceinline__ size_t act_block_offset(int groups, int block) {
  return static_cast<size_t>(block) * groups * act_stride(kRowBlock);
}

// An accumulator that starts at kMagicBits ends as the bits of the float 1.5 * 2^23 plus its sum,
// while that is below 2^22 in magnitude: it needs no conversion (q4_tile.cuh).
constexpr int kMagicBits = 0x4b400000;

// A group's sums of digits 2, 1 and 0, each at most 4096 in magnitude.
struct DigitSums {
  int sums[3];

  // Two sums in one integer, which can be added as it is.
  __device__ __forceinline__ static int upper(int d2, int d1) { return d2 * 65536 + d1; }
  __device__ __forceinline__ DigitSums(int both, int d0) {
    const int d1 = static_cast<int16_t>(both);
    sums[0] = (both - d1) >> 16, sums[1] = d1, sums[2] = d0;
  }
  // Starts and scale of row r of `rows` in a group with exponent e. Weights are stored as 0..15, so
  // a digit's sum starts at -8 times the digits' sum; rows 8..15 of a tile count sixteenths.
  template <bool Few>
  __device__ __forceinline__ void write(uint8_t* group, int rows, int r, int e) const {
    int* start = reinterpret_cast<int*>(group + act_start(rows));
    int low[3], high[3];
#pragma unroll
    for (int i = 0; i < 3; ++i)
      low[i] = kMagicBits - 8 * sums[i], high[i] = kMagicBits - 128 * sums[i];
    if constexpr (Few) {
      int4* four = reinterpret_cast<int4*>(start) + r * 2;
      four[0] = {low[0], low[1], high[0], high[1]}, four[1] = {low[2], low[2], high[2], high[2]};
    } else {
      start += r / 2 * 12 + r % 2;
#pragma unroll
      for (int i = 0; i < 3; ++i) start[4 * i] = low[i], start[4 * i + 2] = high[i];
    }
    reinterpret_cast<float*>(group + act_scale(rows))[r] = arith::exponent_to_scale(e);
  }
};

// A warp holds one group of row `row` of m: lane k has input k. Writes the group's part of act.
__device__ __forceinline__ void quantize_group(float x, int lane, uint8_t* act, int groups,
                                               int group, int row, int m) {
  const uint32_t most = warp_max(arith::as_bits(x) & 0x7fffffffu);
  const int e = arith::group_exponent(most);
  const int32_t q = e > 127 || most == 0 ? 0 : arith::fixed_point(x, e);
  int8_t d2, d1, d0;
  arith::split_digits(q, d2, d1, d0);
  const DigitSums sums(warp_sum(DigitSums::upper(d2, d1)), warp_sum(d0));

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
    if (few_rows(rows)) sums.write<true>(to, rows, r, e);
    else sums.write<false>(to, rows, r, e);
  }
}

// The same where eight threads, Stride lanes apart, hold a group, thread k of them the inputs 4 k
// .. 4 k + 3: each makes its own words. All 32 lanes are here for the first part; groups past the
// last are not written.
template <int Stride>
struct QuantizedQuad {
  uint32_t words[3];  // digits 2, 1, 0 of the four inputs
  int upper, lower, e;

  __device__ __forceinline__ explicit QuantizedQuad(float4 x) {
    const float v[4] = {x.x, x.y, x.z, x.w};
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) most = max(most, arith::as_bits(v[i]) & 0x7fffffffu);
#pragma unroll
    for (int n = 1; n < 8; n *= 2) most = max(most, __shfl_xor_sync(kFull, most, n * Stride));
    e = arith::group_exponent(most);
    uint32_t d[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      d[i] = e > 127 ? 0u : arith::digit_bytes(arith::fixed_point(v[i], e));
    const uint32_t d01 = __byte_perm(d[0], d[1], 0x5140), d23 = __byte_perm(d[2], d[3], 0x5140);
    words[2] = __byte_perm(d01, d23, 0x5410), words[1] = __byte_perm(d01, d23, 0x7632);
    words[0] =
        __byte_perm(__byte_perm(d[0], d[1], 0x0062), __byte_perm(d[2], d[3], 0x0062), 0x5410);
    constexpr uint32_t kOnes = 0x01010101u;
    upper = DigitSums::upper(__dp4a(static_cast<int>(words[0]), static_cast<int>(kOnes), 0),
                             __dp4a(static_cast<int>(words[1]), static_cast<int>(kOnes), 0)),
    lower = __dp4a(static_cast<int>(words[2]), static_cast<int>(kOnes), 0);
#pragma unroll
    for (int n = 1; n < 8; n *= 2)
      upper += __shfl_xor_sync(kFull, upper, n * Stride),
          lower += __shfl_xor_sync(kFull, lower, n * Stride);
  }
  // group: the group's place, in a block of `rows` rows; r: its row there; k: the thread, modulo 8.
  template <bool Few>
  __device__ __forceinline__ void write(uint8_t* group, int rows, int r, int k) const {
    const int half = k % 8 / 4, t = k % 4;
    uint32_t* hi = reinterpret_cast<uint32_t*>(group + r * 64 + t * 16);
    hi[half] = words[0], hi[2 + half] = words[1];
    *reinterpret_cast<uint32_t*>(group + rows * 64 + r * 32 + t * 8 + half * 4) = words[2];
    if (k % 8 == 0) DigitSums(upper, lower).write<Few>(group, rows, r, e);
  }
};

__device__ __forceinline__ void quantize_quad(float4 x, int lane, uint8_t* act, int groups,
                                              int group, int row, int m) {
  const QuantizedQuad<1> quad(x);
  if (group >= groups) return;
  const int block = row / kRowBlock, rows = min(m - block * kRowBlock, kRowBlock);
  uint8_t* to =
      act + act_block_offset(groups, block) + static_cast<size_t>(group) * act_stride(rows);
  if (few_rows(rows)) quad.write<true>(to, rows, row % kRowBlock, lane);
  else quad.write<false>(to, rows, row % kRowBlock, lane);
}

}  // namespace vcuda::gpu
