// y = W x or y += W x for Q4 weights on Hopper, as a kernel of its own (ring.cuh has the work).
#pragma once

#include "kernels/ring.cuh"

namespace vcuda::gpu {

// grid: clusters of 2 blocks of kRingThreads; p.q.tiles == R, Few == few_rows(p.out.m).
template <int R, bool Few>
static __global__ void __launch_bounds__(kRingThreads, 1)
    kernel_project_ring(Projection p, RingPlan plan) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
  extern __shared__ __align__(128) uint8_t shared[];
  const RingBlock block(shared);
  block.init();
  const int warp = threadIdx.x / 32;
  if (warp == kConsumers) {
    if (threadIdx.x % 32 == 0) {
      RingProducer producer(block, plan, p);
      producer.run([] { wait_for_predecessor(); });
    }
    __syncwarp();
    block.meet();
  } else if (warp > kConsumers) {
    wait_for_predecessor();
    block.meet();
    ring_reduce<Few>(block, plan, p, warp - kConsumers - 1);
  } else {
    ring_consume<R, Few>(block, plan, p);
    block.meet();
  }
#endif
}

}  // namespace vcuda::gpu
