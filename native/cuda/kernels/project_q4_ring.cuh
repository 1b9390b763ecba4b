// y = W x or y += W x for Q4 weights on Hopper, as a kernel of its own (ring.cuh has the work).
#pragma once

#include "kernels/ring_gate.cuh"
#include "kernels/ring_norm.cuh"
#include "kernels/ring_reduce.cuh"

namespace vcuda::gpu {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
// A thread of kRingThreads; memory: the block's, plan.bytes of it.
template <int R, Form F>
__device__ __forceinline__ void project_ring(uint8_t* memory, const Projection& p,
                                             const RingPlan& plan) {
  constexpr bool kFew = F != Form::kMany;
  const RingBlock block(memory, plan);
  block.init<kFew>(plan, p.out.m);
  const int warp = threadIdx.x / 32;
  if (warp == kConsumers) {
    if (threadIdx.x % 32 == 0) {
      RingProducer<kFew> producer(block, plan, p);
      producer.fill();
      producer.run();
      producer.run_ahead();
    }
    __syncwarp();
    cluster_wait();
  } else if (warp > kConsumers) {
    wait_for_predecessor();
    if (warp == kConsumers + 1) ring_first_inputs<kTakesNorm<R, F>>(block, plan, p);
    cluster_wait();
    if (plan.staying) barrier_wait(&block.bars->factored, 0);
    const int reducer = warp - kConsumers - 1;
    if constexpr (kBehindNorm<R>)
      if (p.q.gated) return ring_gate<R, F>(block, plan, p, reducer);
    ring_reduce<R, F>(block, plan, p, reducer);
  } else {
    if (kTakesNorm<R, F> && plan.staying) ring_normalize(block, plan, p);
    ring_consume<R, F>(block, plan, p);
    cluster_wait();
  }
}
#endif

// grid: clusters of 2 blocks of kRingThreads; p.q.tiles == R, F == form_of(p.out.m). Registers:
// with few rows small operations' blocks fit beside.
template <int R, Form F>
static __global__ void __maxnreg__(F == Form::kMany ? 168 : 144)
    kernel_project_ring(Projection p, RingPlan plan) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
  extern __shared__ __align__(128) uint8_t shared[];
  project_ring<R, F>(shared, p, plan);
#endif
}

}  // namespace vcuda::gpu
