// y = W x or y += W x for Q4 weights, any device: a block a tile, a warp a lane of the contract,
// operands straight from memory. Hopper has project_q4_ring.cuh; this one stays for other devices
// and for rows too long for shared memory.
#pragma once

#include "kernels/q4_tile.cuh"

namespace vcuda::gpu {

// grid: tiles of the matrix; act: one block of out.m rows
template <bool Few>
static __global__ void __launch_bounds__(512)
    kernel_project_q4(const uint8_t* weights, Q4Shape q, const uint8_t* act, Output out) {
  wait_for_predecessor();
  __shared__ TileSum<Few> lanes[arith::kQ4Lanes][32];
  const int lane = threadIdx.x % 32, l = threadIdx.x / 32, tile = blockIdx.x;
  const int slab = tile / q.tiles, half = tile % q.tiles >= q.half_tiles(0),
            r = tile % q.tiles - half * q.half_tiles(0);
  const int rank = l / q.lanes(), cell = q.cell(half, l % q.lanes());
  const TilePlace place(q.half_tiles(half), r, lane);
  const ActOffsets<Few> offsets(lane, out.m);
  TileSum<Few> sum = {};
  for (int s = 0, group = l; group < q.groups; ++s, group += arith::kQ4Lanes) {
    const uint8_t* from = weights + q.stage(slab, rank, s) + cell;
    const uint2 w = *reinterpret_cast<const uint2*>(from + place.words);
    const ActFragment<Few> x = offsets.load(act + static_cast<size_t>(group) * act_stride(out.m));
    tile_fma<Few>(sum, w.x, w.y, *reinterpret_cast<const uint32_t*>(from + place.scales), x);
  }
  lanes[l][lane] = sum;
  __syncthreads();
  if (threadIdx.x < 32) out.store(tile, lane, tree<arith::kQ4Lanes>(&lanes[0][lane], 32));
}

}  // namespace vcuda::gpu
