// The file of this name in cuda/kernels, emulated: the lanes of a warp bring their operands, each
// computes its four results.
#pragma once

#include <array>

#include "kernels/common.cuh"

namespace vcuda::gpu {

struct MmaOperands {
  uint32_t a[4], b[2];
};
// What the lanes of each of a cluster's warps brought, this time and the time before: a lane may be
// one instruction ahead of those that still read.
inline std::array<std::array<std::array<MmaOperands, 32>, 2>, 32> mma_brought;
inline std::array<unsigned, 1024> mma_turns;

inline int4 imma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int4 start) {
  const unsigned thread = emulation::thread_of_cluster(), lane = thread % 32;
  auto& all = mma_brought.at(thread / 32)[mma_turns.at(thread)++ % 2];
  all[lane] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulation::meet_warp(0);
  // Element k of a row of A: byte k % 4 of the lane 4 * row + k % 16 / 4; columns of B likewise.
  auto byte = [](uint32_t word, unsigned k) { return word >> (k % 4 * 8) & 0xffu; };
  auto dot = [&](unsigned row, unsigned column) {
    int sum = 0;
    for (unsigned k = 0; k < 32; ++k) {
      const unsigned at = k % 16 / 4;
      const uint32_t u = byte(all[row % 8 * 4 + at].a[k / 16 * 2 + row / 8], k);
      const auto s = static_cast<int8_t>(byte(all[column * 4 + at].b[k / 16], k));
      sum += static_cast<int>(u) * s;
    }
    return sum;
  };
  const unsigned row = lane / 4, column = lane % 4 * 2;
  return {start.x + dot(row, column), start.y + dot(row, column + 1),
          start.z + dot(row + 8, column), start.w + dot(row + 8, column + 1)};
}

}  // namespace vcuda::gpu
