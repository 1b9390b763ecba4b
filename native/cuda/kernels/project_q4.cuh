// y = W x or y += W x for Q4 weights, any device: a block a tile, a warp a lane of the contract,
// operands straight from memory. Hopper has project_q4_ring.cuh; this one is for other devices, and
// what the others are held against (VLLM_CUDA_Q4_TILES=0).
#pragma once

#include "kernels/q4_tile.cuh"

namespace vcuda::gpu {

// grid: tiles of the matrix, which has one a slab and no clusters; act: one block of out.m rows; F:
// few or many
template <Form F>
static __global__ void __launch_bounds__(512)
    kernel_project_q4(const uint8_t* weights, Q4Shape q, const uint8_t* act, Output out) {
  wait_for_predecessor();
  __shared__ TileSum<F> lanes[arith::kQ4Lanes][32];
  const int lane = threadIdx.x % 32, l = threadIdx.x / 32, tile = blockIdx.x;
  const ActOffsets<F> offsets(lane, out.m);
  TileSum<F> sum{};
  for (int s = 0, group = l; group < q.groups; ++s, group += arith::kQ4Lanes) {
    const uint8_t* cell = weights + q.cell(tile, 0, s, l) * q.cell_bytes();
    const uint2 w = *reinterpret_cast<const uint2*>(cell + lane * 8);
    const uint32_t tile_words[2] = {w.x, w.y};
    const TileMath<F> math(offsets.load(act + static_cast<size_t>(group) * act_stride(out.m)),
                           lane);
    math.add(sum, tile_words, *reinterpret_cast<const uint32_t*>(cell + 256 + lane / 4 * 4));
  }
  lanes[l][lane] = unscaled(sum);
  __syncthreads();
  if (threadIdx.x < 32)
    out.store(tile, lane, tree<arith::kQ4Lanes>(&lanes[0][lane], 32),
              out.load<TileSum<F>>(tile, lane));
}

}  // namespace vcuda::gpu
