// y = W x or y += W x for Q4 weights, any device: a block a tile, a warp a lane of the contract,
// operands straight from memory. Hopper has project_q4_ring.cuh; this one stays for other devices
// and for rows too long for shared memory.
#pragma once

#include "kernels/q4_tile.cuh"

namespace vcuda::gpu {

// grid: tiles of the matrix; act: one block of out.m rows; F: few or many
template <Form F>
static __global__ void __launch_bounds__(512)
    kernel_project_q4(const uint8_t* weights, Q4Shape q, const uint8_t* act, Output out) {
  wait_for_predecessor();
  __shared__ TileSum<F> lanes[arith::kQ4Lanes][32];
  const int lane = threadIdx.x % 32, l = threadIdx.x / 32, tile = blockIdx.x;
  const int slab = tile / q.slab_tiles(), rest = tile % q.slab_tiles(), r = rest % q.tiles;
  const int rank = l / q.per_block(), warp = rest / q.tiles * q.per_block() + l % q.per_block();
  const int words =
      r < q.tiles / 2 * 2 ? r / 2 * 512 + lane * 16 + r % 2 * 8 : q.tiles / 2 * 512 + lane * 8;
  const int fours = q.tiles / 4 * 4, rests = q.tiles % 4;
  const int scales = q.tiles * 256 + (r < fours ? r / 4 * 128 + lane / 4 * 16 + r % 4 * 4
                                                : fours * 32 + (lane / 4 * rests + r - fours) * 4);
  const ActOffsets<F> offsets(lane, out.m);
  TileSum<F> sum{};
  for (int s = 0, group = l; group < q.groups; ++s, group += arith::kQ4Lanes) {
    const uint8_t* cell = weights + q.cell(slab, rank, s, warp) * q.cell_bytes();
    const uint2 w = *reinterpret_cast<const uint2*>(cell + words);
    const uint32_t tile_words[2] = {w.x, w.y};
    const TileMath<F> math(offsets.load(act + static_cast<size_t>(group) * act_stride(out.m)),
                           lane);
    math.add(sum, tile_words, *reinterpret_cast<const uint32_t*>(cell + scales));
  }
  lanes[l][lane] = unscaled(sum);
  __syncthreads();
  if (threadIdx.x < 32)
    out.store(tile, lane, tree<arith::kQ4Lanes>(&lanes[0][lane], 32),
              out.load<TileSum<F>>(tile, lane));
}

}  // namespace vcuda::gpu
