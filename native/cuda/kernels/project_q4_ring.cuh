// y = W x or y += W x for Q4 weights on Hopper, as a kernel of its own (ring.cuh has the work).
#pragma once

#include "kernels/ring.cuh"

namespace vcuda::gpu {

// grid: clusters of 2 blocks of kRingThreads; p.q.tiles == Tiles; Few: m is at most
// kFewRows.
template <int Tiles, bool Few>
static __global__ void __launch_bounds__(kRingThreads, 1)
    kernel_project_ring(const __grid_constant__ Projection p,
                        const __grid_constant__ RingPlan plan) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
  extern __shared__ __align__(128) uint8_t shared[];
  const RingBlock block(shared);
  block.init();
  const int warp = threadIdx.x / 32;
  constexpr int kFirst = (Tiles + 1) / 4 * 2;
  if (warp < kConsumers) {
    take_registers<kConsumerRegisters>();
    block.meet();
    if (warp < kConsumers / 2) ring_consume<kFirst, Few>(block, plan, p);
    else ring_consume<Tiles - kFirst, Few>(block, plan, p);
  } else {
    leave_registers<kOtherRegisters>();
    const bool first_lane = threadIdx.x % 32 == 0;
    if (warp == kWeightsWarp) {
      if (first_lane) ring_weights(block, plan, p.weights, p.q);  // need nobody
      __syncwarp();
      block.meet();
    } else if (warp == kActsWarp) {
      wait_for_predecessor();
      if (first_lane) ring_acts(block, plan, p);
      __syncwarp();
      block.meet();
    } else {
      const int reducer = warp - kFirstReducer;
      const FloatReducer floats{block, plan, p.floats, p.out.m, p.out.ld};
      if (reducer == 1 && first_lane) floats.bring_weights(blockIdx.x);
      wait_for_predecessor();
      block.meet();
      if (reducer == 1) floats.run();
      ring_reduce<Few>(block, plan, p, reducer);
    }
  }
#endif
}

}  // namespace vcuda::gpu
