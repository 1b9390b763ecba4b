// The whole step as one kernel on Hopper: a program of phases with a barrier of the grid between them.
//
// Launched one by one, a step is some 500 kernels, and each boundary drains and refills the memory system. Here every block stays on
// its multiprocessor and the producer thread streams the weights of all projections, one after the other, through one ring: while
// the other warps are in a norm, at a barrier or in the recurrence, the ring fills with the next projection's weights.
// The operations are the functions that the single kernels use: the same bits.
#pragma once

#include "kernels/attention.cuh"
#include "kernels/embed.cuh"
#include "kernels/finish.cuh"
#include "kernels/gdn.cuh"
#include "kernels/ring.cuh"
#include "kernels/rms_norm.cuh"
#include "kernels/swiglu.cuh"

namespace vcuda::gpu {

enum class PhaseType : int { kEmbed, kNorm, kProject, kGdnLarge, kGdnSmall, kPrepare, kAttend, kMerge, kSwiglu, kCheck };

struct Phase {
  PhaseType type;
  union {
    EmbedArgs embed;
    NormArgs norm;
    Projection project;
    GdnArgs gdn;
    AttentionArgs attention;
    SwigluArgs swiglu;
    CheckArgs check;
  };
  Phase() {}
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

// Every block's workers arrive; what they wrote is visible to all afterwards, to bulk copies too.
__device__ __forceinline__ void grid_barrier(unsigned* counter, unsigned target, int worker) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  named_barrier<2, kRingWorkers>();
  if (worker == 0) {
    __threadfence();
    atomicAdd(counter, 1u);
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (seen < target);
    __threadfence();
  }
  named_barrier<2, kRingWorkers>();
}
#endif

// grid: clusters of 2 blocks of kRingThreads, all of them resident. counter: 0 at the start. times: NULL, or the clock before each phase and
// after the last.
static __global__ void __launch_bounds__(kRingThreads, 1)
    kernel_fused_step(const Phase* program, int count, RingPlan plan, const StepParams* step, unsigned* counter, long long* times) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(16) uint32_t copies[2][(sizeof(Phase) + 3) / 4];
  const RingBlock block(shared);
  block.init(plan);
  block.meet();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == kConsumers) {
    if (lane == 0) {
      RingProducer producer;
      for (int i = 0; i < count; ++i)
        if (program[i].type == PhaseType::kProject) producer.run(block, plan, program[i].project.weights, program[i].project.q);
    }
    return;
  }

  const bool consumer_warp = warp < kConsumers;
  const int reducer_index = warp - kConsumers - 1, worker = consumer_warp ? threadIdx.x : threadIdx.x - 32, worker_warp = worker / 32;
  constexpr int kWarps = kRingWorkers / 32, kBody = kConsumers * 32;  // warps of the warp-wise operations; threads of the others
  RingConsumer consumer;
  RingReducer reducer;
  float* scratch = reinterpret_cast<float*>(shared + plan.sums);
  auto fetch = [&](int i) {  // a phase's description into shared memory
    if (reducer_index == kReducers - 1 && i < count)
      for (int k = lane; k < static_cast<int>(sizeof copies[0] / 4); k += 32) copies[i % 2][k] = reinterpret_cast<const uint32_t*>(program + i)[k];
  };
  auto ready = [] {};
  auto sync = [] { named_barrier<3, kBody>(); };
  fetch(0);
  named_barrier<2, kRingWorkers>();

  for (int i = 0; i < count; ++i) {
    const Phase& phase = *reinterpret_cast<const Phase*>(copies[i % 2]);
    fetch(i + 1);
    if (times && blockIdx.x == 0 && worker == 0) times[i] = clock64();
    switch (phase.type) {
      case PhaseType::kEmbed:
        if (static_cast<int>(blockIdx.x) < phase.embed.rows) embed_row(phase.embed, blockIdx.x, worker, kRingWorkers);
        break;
      case PhaseType::kNorm:
        if (consumer_warp) {
          const NormArgs a = phase.norm;
          for (int task = blockIdx.x; task < a.parts() * a.m; task += gridDim.x) {
            norm_part(a, task % a.parts(), task / a.parts(), worker, scratch, ready, sync);
            sync();
          }
        }
        break;
      case PhaseType::kProject:
        if (consumer_warp) {
          switch (phase.project.q.tiles) {
            case 2: consumer.run<2>(block, plan, phase.project); break;
            case 5: consumer.run<5>(block, plan, phase.project); break;
            case 7: consumer.run<7>(block, plan, phase.project); break;
            case 8: consumer.run<8>(block, plan, phase.project); break;
            default: consumer.run<11>(block, plan, phase.project); break;
          }
        } else {
          reducer.run(block, plan, phase.project, reducer_index);
        }
        break;
      case PhaseType::kGdnLarge:
        if (consumer_warp)
          for (int head = blockIdx.x; head < phase.gdn.v_heads; head += gridDim.x) {
            gdn_head<16, 4>(phase.gdn, step, head, worker, kBody, scratch, ready, sync);
            sync();
          }
        break;
      case PhaseType::kGdnSmall:
        if (consumer_warp)
          for (int head = blockIdx.x; head < phase.gdn.v_heads; head += gridDim.x) {
            gdn_head<8, 2>(phase.gdn, step, head, worker, kBody, scratch, ready, sync);
            sync();
          }
        break;
      case PhaseType::kPrepare: {
        const AttentionArgs& a = phase.attention;
        const int heads = a.q_heads + a.kv_heads;
        for (int task = blockIdx.x * kWarps + worker_warp; task < heads * a.m; task += gridDim.x * kWarps) {
          attention_prepare(a, step, task % heads, task / heads, lane, scratch + worker_warp * 256);
          __syncwarp();
        }
        break;
      }
      case PhaseType::kAttend:
        if (consumer_warp) {
          const AttentionArgs& a = phase.attention;
          const AttentionWork work(step->position + a.m);
          if (a.m * a.per_kv() > 8) attend<16, 1>(a, step->position, work, worker, scratch, sync);
          else attend<8, 1>(a, step->position, work, worker, scratch, sync);
        }
        break;
      case PhaseType::kMerge:
        if (consumer_warp) {
          const AttentionArgs& a = phase.attention;
          if (warp < (a.d + 31) / 32)
            for (int task = blockIdx.x; task < a.q_heads * a.m; task += gridDim.x) attention_merge(a, step, task % a.q_heads, task / a.q_heads, worker);
        }
        break;
      case PhaseType::kSwiglu: {
        const SwigluArgs& a = phase.swiglu;
        const int groups = a.n / arith::kGroup;
        for (int task = blockIdx.x * kWarps + worker_warp; task < groups * a.m; task += gridDim.x * kWarps) swiglu_group(a, task % groups, task / groups, lane);
        break;
      }
      case PhaseType::kCheck:
        check_finite(phase.check, static_cast<size_t>(blockIdx.x) * kRingWorkers + worker, static_cast<size_t>(gridDim.x) * kRingWorkers);
        break;
    }
    if (i + 1 < count) grid_barrier(counter, gridDim.x * static_cast<unsigned>(i + 1), worker);
    else if (times && blockIdx.x == 0 && worker == 0) times[count] = clock64();
  }
#endif
}

}  // namespace vcuda::gpu
