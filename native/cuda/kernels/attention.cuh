// Full attention as one launch: blocks take units, then merge what the units of all blocks left.
//
// Tasks are numbered: the units first, then the passes that merge. A pass waits for the units of
// its (key head, group). Who takes tickets (the single kernel) waits for running blocks only, since
// all units have been taken before the first pass is; so there is no demand that all blocks run at
// once. The fused step, whose blocks do, goes through the tasks by stride.
#pragma once

#include "kernels/act.cuh"
#include "kernels/attention_merge.cuh"

namespace vcuda::gpu {

// The single kernel's order: a ticket a task. The next one is drawn while a task is at work.
struct TicketTasks {
  unsigned* counter;
  int* word;  // shared
  int total, drawn;

  template <class Sync>
  __device__ __forceinline__ int first(Sync sync) {
    return next(sync);
  }
  __device__ __forceinline__ void draw() {
    if (threadIdx.x == 0) drawn = static_cast<int>(atomicAdd(counter, 1u));
  }
  template <class Sync>
  __device__ __forceinline__ int next(Sync sync) {
    if (threadIdx.x == 0) {
      *word = drawn;
      // Each block draws one ticket past the end; the last of those leaves the counter as it was.
      if (drawn == total + static_cast<int>(gridDim.x) - 1) *counter = 0;
    }
    sync();
    return *word;
  }
};

struct StrideTasks {
  int task, total;
  template <class Sync>
  __device__ __forceinline__ int first(Sync sync) {
    sync();
    return task = blockIdx.x;
  }
  __device__ __forceinline__ void draw() {}
  template <class Sync>
  __device__ __forceinline__ int next(Sync) {
    return task += gridDim.x;
  }
};

// By 256 threads, the first of the block. ready: returns when what the projection in front wrote is
// there. memory_at: in bytes, of the block's shared memory.
template <int MostTile, int V, class Tasks, class Sync, class Ready>
__device__ __forceinline__ void attention_tasks(const AttentionArgs& a, const StepParams* step,
                                                int memory_at, Tasks tasks, Sync sync,
                                                Ready ready) {
  AttentionShared& shared = attention_shared(memory_at);
  tasks.draw();
  const int position = step->position + a.row0;
  {
    const AttentionSplit s = attention_split(a, position, gridDim.x);
    const MergePlan plan(a, s, gridDim.x);
    tasks.total = (s.units() + plan.passes) * a.kv_heads * s.groups;
    if (threadIdx.x == 0)
      shared.args = a, shared.split = s, shared.plan = plan, shared.position = position;
  }
#pragma unroll 1
  for (int task = tasks.first(sync); task < tasks.total; task = tasks.next(sync)) {
    tasks.draw();
    const AttentionSplit& s = shared.split;
    const int heads = shared.args.kv_heads * s.groups, whole = s.whole * heads,
              units = s.units() * heads;
    if (task >= units) {
      attention_merge(memory_at, task - units, sync, ready);
      continue;
    }
    if (threadIdx.x == 0) {
      AttentionUnit& u = shared.unit;
      u.whole = task < whole;
      const int i = u.whole ? task : task - whole, length = u.whole ? arith::kSpanChunks : s.length;
      u.head = i % heads;
      u.begin = (u.whole ? 0 : s.whole * arith::kSpanChunks) + i / heads * length;
      u.end = min(u.begin + length, s.chunks);
    }
    sync();
    switch (s.tile) {
      case 0: AttentionRun<1, 3, V>::run(memory_at, sync, ready); break;
      case 1: AttentionRun<1, 6, V>::run(memory_at, sync, ready); break;
      case 2: AttentionRun<2, 6, V>::run(memory_at, sync, ready); break;
      case 3:
        if constexpr (MostTile >= 3) AttentionRun<4, 6, V>::run(memory_at, sync, ready);
        break;
      default:
        if constexpr (MostTile >= 4) AttentionRun<8, 6, V>::run(memory_at, sync, ready);
    }
    if (threadIdx.x == 0) count_unit(shared.args.counters + 1 + shared.unit.head);
  }
}

// grid: any number of blocks, one on a multiprocessor. D <= 256 * V.
template <int MostTile, int V>
static __global__ void __launch_bounds__(kAttentionThreads, 1)
    kernel_attention(AttentionArgs a, const StepParams* step) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  // Before a projection has ended its successor may read what was there when it began: the step's
  // parameters, the keys and values of earlier steps, counters.
  if (!a.early) wait_letting_go();
  const TicketTasks tasks{a.counters, &attention_shared(0).ticket, 0, 0};
  attention_tasks<MostTile, V>(
      a, step, 0, tasks, [] { __syncthreads(); }, [] { wait_letting_go(); });
}

struct AttentionKernel {
  int most_tile;
  void (*kernel)(AttentionArgs, const StepParams*);
};
inline AttentionKernel attention_kernel(int d) {
  return d <= 256 ? AttentionKernel{4, kernel_attention<4, 1>}
                  : AttentionKernel{2, kernel_attention<2, 2>};
}

}  // namespace vcuda::gpu
