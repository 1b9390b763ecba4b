// The projection engine on Hopper (the whole step's bandwidth depends on it): the roles of a
// block's warps in one projection.
//
// Clusters of two blocks share slabs of rows and split the contract's lanes (q4_layout.cuh). In a
// block, one producer thread streams the cells of all warps, and the activations, through a ring in
// shared memory (cp.async.bulk, an mbarrier a stage), across slabs; consumer warps each own one
// lane and R tiles of rows; reducer warps (ring_reduce.cuh) compute float32 rows of the projection
// where there are any, and add the lane sums of a slab in shared memory, then, over the cluster, in
// the block that owns the tile, while the consumers are at the next slab. The adjacency tree makes
// both splits free of bits.
//
// What runs once in a block (its start, its end) is as dear as the streaming (NOTES.md): nothing
// there divides, no barrier releases more than it must, and the predecessor's results have a thread
// of their own that asks for them.
#pragma once

#include "kernels/mbarrier.cuh"
#include "kernels/ring_plan.cuh"

namespace vcuda::gpu {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

// A thread's part of a cell: R tiles at one group; scales of its tile of each pair, or of all.
template <int R, Form F>
struct Cell {
  uint32_t words[R][2], scales[tile_sums(R, F)];

  __device__ __forceinline__ void load(const uint8_t* cell, int lane) {
#pragma unroll
    for (int r = 0; r < R / 2; ++r) {
      const uint4 w = *reinterpret_cast<const uint4*>(cell + r * 512 + lane * 16);
      words[2 * r][0] = w.x, words[2 * r][1] = w.y, words[2 * r + 1][0] = w.z,
                words[2 * r + 1][1] = w.w;
    }
    if constexpr (R % 2 == 1) {
      const uint2 w = *reinterpret_cast<const uint2*>(cell + R / 2 * 512 + lane * 8);
      words[R - 1][0] = w.x, words[R - 1][1] = w.y;
    }
    constexpr int kFours = R / 4 * 4, kRest = R % 4;
    cell += R * 256;
    if constexpr (F == Form::kPairs) {
      const int row = lane / 4, second = lane % 4 / 2;
#pragma unroll
      for (int r = 0; r < R; r += 2) {
        scales[r / 2] = *reinterpret_cast<const uint32_t*>(
            r < kFours ? cell + r / 4 * 128 + row * 16 + (r % 4 + second) * 4
                       : cell + kFours * 32 +
                             (row * kRest + (r + 1 < R ? r - kFours + second : r - kFours)) * 4);
      }
    } else {
#pragma unroll
      for (int r = 0; r < kFours; r += 4) {
        const uint4 v = *reinterpret_cast<const uint4*>(cell + r * 32 + lane / 4 * 16);
        scales[r] = v.x, scales[r + 1] = v.y, scales[r + 2] = v.z, scales[r + 3] = v.w;
      }
      if constexpr (kRest == 2) {
        const uint2 v = *reinterpret_cast<const uint2*>(cell + kFours * 32 + lane / 4 * 8);
        scales[kFours] = v.x, scales[kFours + 1] = v.y;
      } else {
#pragma unroll
        for (int r = 0; r < kRest; ++r)
          scales[kFours + r] =
              *reinterpret_cast<const uint32_t*>(cell + kFours * 32 + (lane / 4 * kRest + r) * 4);
      }
    }
  }
};

// Where a block stands in its cluster and the grid.
struct RingBlock {
  uint8_t* shared;
  RingBarriers* bars;
  int rank, first, step, slabs;  // block of the cluster; first slab, from one to the next, how many

  __device__ __forceinline__ RingBlock(uint8_t* memory, const RingPlan& plan) {
    shared = memory;
    bars = reinterpret_cast<RingBarriers*>(memory);
    rank = static_cast<int>(blockIdx.x) % 2, first = blockIdx.x / 2, step = gridDim.x / 2;
    slabs = plan.slabs_each + (first < plan.slabs_more ? 1 : 0);
  }
  // By every thread, first of all; ends with an arrival at the cluster's barrier, whose wait comes
  // before any message to the other block.
  template <bool Few>
  __device__ __forceinline__ void init(const RingPlan& plan, int m) const {
    auto all = [](uint64_t* barriers, int count) {
#pragma unroll
      for (int i = 0; i < kStages; ++i) barrier_init(&barriers[i], count);
    };
    // Three warps share the work; a lane is one at a time here.
    if (threadIdx.x == 0) {
      all(bars->full, plan.staying ? 1 : 2);  // weights; activations
    } else if (threadIdx.x == 32) {
      all(bars->empty, kConsumers);
      if (Few && !plan.staying) all(bars->landed, 1);
    } else if (threadIdx.x == 64) {
      barrier_init(&bars->exchange[0], 1), barrier_init(&bars->exchange[1], 1);
      barrier_init(&bars->sums, kConsumers * 32), barrier_init(&bars->taken, kReducers * 32);
      barrier_init(&bars->rows, 1), barrier_init(&bars->factored, m);
    }
    if (threadIdx.x % 32 == 0 && threadIdx.x <= 64) barriers_ready();
    __syncthreads();
    cluster_arrive();
  }
};

// A stage of the ring and the parity of its barriers' phase: each role walks all stages in order,
// across slabs.
struct RingCursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next(const RingPlan& plan) {
    if (++stage == plan.stages) stage = 0, parity ^= 1;
  }
};

// The activations of superstep s that a block's lanes have: where, and how many bytes.
struct RingActivations {
  const uint8_t* from;
  uint32_t bytes;
  __device__ __forceinline__ RingActivations(const RingBlock& b, const RingPlan& plan,
                                             const Projection& p, int s) {
    const int stride = plan.superstep / kConsumers,
              group = s * arith::kQ4Lanes + b.rank * kConsumers;
    from = p.act + static_cast<size_t>(group) * static_cast<size_t>(stride);
    // The second block may have no group in the last superstep.
    bytes = static_cast<uint32_t>(max(min(p.q.groups - group, kConsumers), 0) * stride);
  }
  __device__ __forceinline__ void copy(uint8_t* to, uint64_t* barrier) const {
    barrier_expect(barrier, bytes);
    if (bytes) bulk_copy(to, from, bytes, barrier);
  }
};

// One thread. A stage is full when its weights and, where they do not stay, its activations have
// come: each is an arrival, since the first round's weights need no predecessor and either may be
// the first. With few rows at most plan.flight stages of weights are on their way at once; with
// many so many before the first activations have come.
template <bool Few>
struct RingProducer {
  const RingBlock& b;
  const RingPlan& plan;
  const Projection& p;
  int total, filled;  // stages of all slabs, of the first round
  // Where the walk over all weights stands, and the superstep's place in its slab.
  const uint8_t* weights;
  size_t skip;  // bytes from one slab's end to the next one's beginning
  int s = 0;

  __device__ __forceinline__ RingProducer(const RingBlock& block, const RingPlan& ring_plan,
                                          const Projection& projection)
      : b(block), plan(ring_plan), p(projection) {
    const size_t slab = static_cast<size_t>(plan.supersteps) * static_cast<size_t>(plan.act);
    total = b.slabs * plan.supersteps, filled = min(total, plan.stages);
    weights = p.weights + static_cast<size_t>(b.first * 2 + b.rank) * slab;
    skip = static_cast<size_t>(2 * b.step - 1) * slab;
  }
  // The first round's weights. Where full waits for activations too it cannot tell when weights
  // have come, since the predecessor may be at work still: landed does, and this thread arrives at
  // full in their place.
  __device__ __forceinline__ void fill() {
    const bool tell = Few && !plan.staying;
    uint64_t *full = b.bars->full, *landed = tell ? b.bars->landed : full;
    auto wait_landed = [&](int i) {
      barrier_wait(&landed[i], 0);
      if (tell) barrier_arrive(&full[i]);
    };
#pragma unroll 1
    for (int i = 0; i < filled; ++i) {
      if (i >= plan.flight) Few ? wait_landed(i - plan.flight) : barrier_wait(&full[0], 0);
      put(b.shared + plan.ring + i * plan.stage, &landed[i]);
    }
    if (tell) {
#pragma unroll 1
      for (int i = max(filled - plan.flight, 0); i < filled; ++i) wait_landed(i);
    }
  }
  // The other rounds. A stage is given back when its activations have come, so the predecessor has
  // ended by then.
  __device__ __forceinline__ void run() {
    RingCursor at, before;  // the stage to fill; with few rows the one plan.flight stages earlier
    before.stage = plan.stages - plan.flight;
#pragma unroll 1
    for (int i = filled; i < total; ++i, at.next(plan)) {
      barrier_wait(&b.bars->empty[at.stage], at.parity);
      if (Few) barrier_wait(&b.bars->full[before.stage], before.parity), before.next(plan);
      if (i == filled) before_bulk_copy();
      uint8_t* to = b.shared + plan.ring + at.stage * plan.stage;
      uint64_t* full = &b.bars->full[at.stage];
      const int superstep = s;
      put(to, full);
      if (!plan.staying) RingActivations(b, plan, p, superstep).copy(to + plan.act, full);
    }
  }
  // When the last weights have come, the memory would be idle until the next projection's blocks
  // are there: it brings their first ones nearer meanwhile.
  __device__ __forceinline__ void run_ahead() const {
    if (blockIdx.x >= p.next.blocks) return;
    const int last = total - 1;
    barrier_wait(&b.bars->full[last % plan.stages], static_cast<uint32_t>(last / plan.stages % 2));
    bulk_prefetch(p.next.from + static_cast<size_t>(blockIdx.x) * p.next.stride, p.next.bytes);
  }

 private:
  // The next stage's weights.
  __device__ __forceinline__ void put(uint8_t* stage, uint64_t* full) {
    barrier_expect(full, static_cast<uint32_t>(plan.act));
    bulk_copy(stage, weights, static_cast<uint32_t>(plan.act), full);
    weights += plan.act;
    if (++s == plan.supersteps) s = 0, weights += skip;
  }
};

// What the predecessor made, by a warp behind its wait: rows to normalize, or the first round's
// activations, a stage a lane.
template <bool Norm>
__device__ __forceinline__ void ring_first_inputs(const RingBlock& b, const RingPlan& plan,
                                                  const Projection& p) {
  static_assert(kStages <= 32);
  const int i = threadIdx.x % 32;
  before_bulk_copy();
  if (Norm && plan.staying) {
    if (i == 0) {
      const uint32_t bytes = static_cast<uint32_t>(RingPlan::row_bytes(p.q, p.out.m));
      barrier_expect(&b.bars->rows, bytes);
      bulk_copy(b.shared + plan.sums, p.norm.x, bytes, &b.bars->rows);
    }
  } else if (i < min(b.slabs * plan.supersteps, plan.stages)) {
    int s = i;
    while (s >= plan.supersteps) s -= plan.supersteps;
    const RingActivations act(b, plan, p, s);
    act.copy(b.shared + plan.ring + i * plan.stage + plan.act, &b.bars->full[i]);
  }
  __syncwarp();
}

// A warp.
template <int R, Form F>
__device__ __forceinline__ void ring_consume(const RingBlock& b, const RingPlan& plan,
                                             const Projection& p) {
  static_assert(R <= kMostTiles);
  constexpr int kSums = tile_sums(R, F);
  const Q4Shape& q = p.q;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int supersteps = plan.supersteps;
  const int own_groups =
      (q.groups - b.rank * kConsumers - warp + arith::kQ4Lanes - 1) / arith::kQ4Lanes;
  const ActOffsets<F> offsets(lane, p.out.m);
  const bool staying = kTakesNorm<R, F> && plan.staying;
  const int own_act = warp * act_stride(p.out.m) + (staying ? 0 : plan.act);
  TileSum<F>* sums = reinterpret_cast<TileSum<F>*>(b.shared + plan.sums) + warp * kSums * 32 + lane;
  const uint8_t* stages = b.shared + plan.ring;
  RingCursor at;
  uint32_t taken = 1;  // parity
#pragma unroll 1
  for (int slab = 0; slab < b.slabs; ++slab, taken ^= 1) {
    TileSum<F> sum[kSums] = {};
    const uint8_t* act = b.shared + plan.staying;
#pragma unroll 1
    for (int s = 0; s < supersteps; ++s) {
      const uint8_t* stage = stages + at.stage * plan.stage;
      uint64_t* empty = &b.bars->empty[at.stage];
      barrier_wait(&b.bars->full[at.stage], at.parity);
      at.next(plan);
      // What the arithmetic needs first comes first.
      const auto x = offsets.load((staying ? act : stage) + own_act);
      if (kTakesNorm<R, F>) act += plan.superstep;
      Cell<R, F> cell;
      cell.load(stage + warp * (R * kTileBytes), lane);
      // Given back when the reads have come, so that nothing waits for them; with many tiles they
      // are better among the arithmetic than all before it.
      constexpr int kGivenBack = (R > 8 ? R - 3 : R > 2 ? 2 : R - 1) / together(F);
      if (s < own_groups) {
        const TileMath<F> math(x, lane);
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          if constexpr (F == Form::kPairs) {
            if (2 * i + 1 < R)
              math.add(sum[i], cell.words[2 * i], cell.words[2 * i + 1], cell.scales[i]);
            else math.add(sum[i], cell.words[2 * i], cell.scales[i]);
          } else {
            math.add(sum[i], cell.words[i], cell.scales[i]);
          }
          if (i == kGivenBack) barrier_give_back(empty, lane);
        }
      } else {
        barrier_give_back(empty, lane);
      }
    }
    barrier_wait(&b.bars->taken, taken);  // the sums of the slab before
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i * 32] = unscaled(sum[i]);
    barrier_arrive(&b.bars->sums);
  }
}

// A reducer's share of a slab's tiles: take(tile, the sum of this block's lanes).
template <int R, Form F, class Take>
__device__ __forceinline__ void ring_add_lanes(const RingBlock& b, const RingPlan& plan,
                                               int reducer, Take take) {
  constexpr int kSums = tile_sums(R, F);
  const TileSum<F>* sums =
      reinterpret_cast<const TileSum<F>*>(b.shared + plan.sums) + threadIdx.x % 32;
#pragma unroll 1
  for (int i = reducer; i < kSums; i += kReducers) {
    const TileSum<F> v = tree<kConsumers>(sums + i * 32, kSums * 32);
    take(i * together(F), v);
    if constexpr (F == Form::kPairs) {
      const TileSum<F> second = second_of_pair(v);
      if (2 * i + 1 < R) take(2 * i + 1, second);
    }
  }
}
#endif

}  // namespace vcuda::gpu
