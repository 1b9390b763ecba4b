// The whole step as one kernel on Hopper: a program of phases with a barrier of the grid between
// them.
//
// Launched one by one, a step is some 500 kernels, and each boundary drains and refills the memory
// system. Here every block stays on its multiprocessor and the producer thread streams the weights
// of all projections, one after the other, through one ring: while the other warps are in a norm,
// at a barrier or in the recurrence, the ring fills with the next projection's weights. The
// operations are the functions that the single kernels use: the same bits.
#pragma once

#include "kernels/attention.cuh"
#include "kernels/embed.cuh"
#include "kernels/finish.cuh"
#include "kernels/gdn.cuh"
#include "kernels/ring.cuh"
#include "kernels/rms_norm.cuh"
#include "kernels/swiglu.cuh"

namespace vcuda::gpu {

enum class PhaseType : int {
  kEmbed,
  kNorm,
  kProject,
  kGdnLarge,
  kGdnSmall,
  kPrepare,
  kAttend,
  kMerge,
  kSwiglu,
  kCheck
};

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

// Every block's workers arrive; what they wrote is visible to all afterwards (to bulk copies after
// a proxy fence of their thread).
__device__ __forceinline__ void grid_barrier(unsigned* counter, unsigned target, int worker) {
  named_barrier<2, kRingWorkers>();
  if (worker == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (seen < target);
  }
  named_barrier<2, kRingWorkers>();
}

constexpr int kWorkerWarps = kRingWorkers / 32,
              kBody = kConsumers * 32;  // warps of the warp-wise operations; threads of the others

// One projection's consumer, out of line: the registers of its loop are its own.
template <int R>
__device__ __noinline__ void fused_consume(RingConsumer* state, const RingPlan* from_plan,
                                           const Projection* from) {
  extern __shared__ __align__(128) uint8_t shared[];
  const RingBlock block(shared);
  const RingPlan plan = *from_plan;
  const Projection p = *from;
  RingConsumer consumer = *state;
  consumer.run<R>(block, plan, p);
  *state = consumer;
}

template <int J, int C>
__device__ __noinline__ void fused_gdn(const GdnArgs* from, const StepParams* step,
                                       GdnPeer<2>* state, int scratch_at) {
  static_assert(gdn_threads<J, C, 2>() == kBody && sizeof(GdnShared<J, 2>) <= kScratchBytes);
  extern __shared__ __align__(128) uint8_t shared[];
  const GdnArgs& a = *from;  // in shared memory, and stays there: registers are short
  GdnPeer<2> peer = *state;
  auto sync = [] { named_barrier<3, kBody>(); };
  const int heads = uniform(a.v_heads);
  for (int head = blockIdx.x / 2; head < heads; head += gridDim.x / 2)
    gdn_head<J, C, 2>(
        a, step, head, threadIdx.x, shared + scratch_at, peer, [] {}, sync);
  *state = peer;
}

template <int Q>
__device__ __noinline__ void fused_attend(const AttentionArgs* from, const StepParams* step,
                                          int scratch_at) {
  extern __shared__ __align__(128) uint8_t shared[];
  const AttentionArgs a = *from;
  const AttentionWork work(step->position + a.m);
  attend<Q, 1>(a, step->position, work, threadIdx.x, reinterpret_cast<float*>(shared + scratch_at),
               [] { named_barrier<3, kBody>(); });
}

__device__ __noinline__ void fused_prepare(const AttentionArgs* from, const StepParams* step,
                                           int worker, int scratch_at) {
  extern __shared__ __align__(128) uint8_t shared[];
  const AttentionArgs a = *from;
  const int heads = a.q_heads + a.kv_heads;
  for (int task = blockIdx.x * kWorkerWarps + worker / 32; task < heads * a.m;
       task += gridDim.x * kWorkerWarps) {
    attention_prepare(a, step, task % heads, task / heads, worker % 32,
                      reinterpret_cast<float*>(shared + scratch_at) + worker / 32 * 256);
    __syncwarp();
  }
}

__device__ __noinline__ void fused_merge(const AttentionArgs* from, const StepParams* step) {
  const AttentionArgs a = *from;
  if (static_cast<int>(threadIdx.x) / 32 >= (a.d + 31) / 32) return;
  for (int task = blockIdx.x; task < a.q_heads * a.m; task += gridDim.x)
    attention_merge(a, step, task % a.q_heads, task / a.q_heads, threadIdx.x);
}

__device__ __noinline__ void fused_norm(const NormArgs* from, int scratch_at) {
  extern __shared__ __align__(128) uint8_t shared[];
  const NormArgs a = *from;
  // A part for each pair of warps, the first pairs of all blocks first; each has a barrier of its
  // own.
  const int pair = threadIdx.x / kNormThreads;
  auto sync = [&] {
    asm volatile("bar.sync %0, %1;" ::"r"(4 + pair), "n"(kNormThreads) : "memory");
  };
  for (int task = pair * gridDim.x + blockIdx.x; task < a.parts() * a.m;
       task += kBody / kNormThreads * gridDim.x) {
    norm_part(
        a, task % a.parts(), task / a.parts(), threadIdx.x % kNormThreads,
        reinterpret_cast<float*>(shared + scratch_at) + 2 * pair, [] {}, sync);
    sync();
  }
}

__device__ __noinline__ void fused_swiglu(const SwigluArgs* from, int worker) {
  const SwigluArgs a = *from;
  const int groups = a.n / arith::kGroup;
  for (int task = blockIdx.x * kWorkerWarps + worker / 32; task < groups * a.m;
       task += gridDim.x * kWorkerWarps)
    swiglu_group(a, task % groups, task / groups, worker % 32);
}
#endif

// grid: clusters of 2 blocks of kRingThreads, all of them resident. counter: 0 at the start. times:
// NULL, or the clock before each phase and after the last.
static __global__ void __launch_bounds__(kRingThreads, 1)
    kernel_fused_step(const Phase* program, int count, RingPlan plan, const StepParams* step,
                      unsigned* counter, long long* times) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(16) uint32_t copies[2][(sizeof(Phase) + 3) / 4];
  __shared__ __align__(8) uint64_t gdn_arrived[2];
  GdnPeer<2> gdn_peer(gdn_arrived);
  if (threadIdx.x == 0) gdn_peer.init();
  const RingBlock block(shared);
  block.init(plan);
  block.meet();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == kConsumers) {
    if (lane == 0) {
      RingProducer producer;
      for (int i = 0; i < count; ++i)
        if (program[i].type == PhaseType::kProject)
          producer.run(block, plan, program[i].project.weights, program[i].project.q);
    }
    return;
  }

  const bool consumer_warp = warp < kConsumers;
  const int reducer_index = warp - kConsumers - 1,
            worker = consumer_warp ? threadIdx.x : threadIdx.x - 32;
  RingConsumer consumer;
  RingReducer reducer;
  auto fetch = [&](int i) {  // a phase's description into shared memory
    if (reducer_index == kReducers - 1 && i < count)
      for (int k = lane; k < static_cast<int>(sizeof copies[0] / 4); k += 32)
        copies[i % 2][k] = reinterpret_cast<const uint32_t*>(program + i)[k];
  };
  fetch(0);
  named_barrier<2, kRingWorkers>();

  for (int i = 0; i < count; ++i) {
    const Phase& phase = *reinterpret_cast<const Phase*>(copies[i % 2]);
    fetch(i + 1);
    if (times && blockIdx.x == 0 && worker == 0) times[i] = clock64();
    switch (phase.type) {
      case PhaseType::kEmbed:
        if (static_cast<int>(blockIdx.x) < phase.embed.rows)
          embed_row(phase.embed, blockIdx.x, embed_token(phase.embed, blockIdx.x), worker,
                    kRingWorkers);
        break;
      case PhaseType::kNorm:
        if (consumer_warp) fused_norm(&phase.norm, plan.sums);
        break;
      case PhaseType::kProject:
        if (consumer_warp) {
          switch (phase.project.q.tiles) {
            case 2: fused_consume<2>(&consumer, &plan, &phase.project); break;
            case 5: fused_consume<5>(&consumer, &plan, &phase.project); break;
            case 7: fused_consume<7>(&consumer, &plan, &phase.project); break;
            case 8: fused_consume<8>(&consumer, &plan, &phase.project); break;
            default: fused_consume<11>(&consumer, &plan, &phase.project); break;
          }
        } else {
          const Projection p = phase.project;
          reducer.run(block, plan, p, reducer_index);
        }
        break;
      case PhaseType::kGdnLarge:
        if (consumer_warp) fused_gdn<16, 2>(&phase.gdn, step, &gdn_peer, plan.sums);
        break;
      case PhaseType::kGdnSmall:
        if (consumer_warp) fused_gdn<8, 1>(&phase.gdn, step, &gdn_peer, plan.sums);
        break;
      case PhaseType::kPrepare: fused_prepare(&phase.attention, step, worker, plan.sums); break;
      case PhaseType::kAttend:
        if (consumer_warp) { fused_attend<8>(&phase.attention, step, plan.sums); }
        break;
      case PhaseType::kMerge:
        if (consumer_warp) fused_merge(&phase.attention, step);
        break;
      case PhaseType::kSwiglu: fused_swiglu(&phase.swiglu, worker); break;
      case PhaseType::kCheck:
        check_finite(phase.check, static_cast<size_t>(blockIdx.x) * kRingWorkers + worker,
                     static_cast<size_t>(gridDim.x) * kRingWorkers);
        break;
    }
    if (i + 1 < count) grid_barrier(counter, gridDim.x * static_cast<unsigned>(i + 1), worker);
    else if (times && blockIdx.x == 0 && worker == 0) times[count] = clock64();
  }
#endif
}

}  // namespace vcuda::gpu
