// The projection engine on Hopper (the whole step's bandwidth depends on it): the roles of a
// block's warps in one projection.
//
// Clusters of two blocks share slabs of rows and split the contract's lanes (q4_layout.cuh). In a
// block, one producer thread streams the cells of all warps, and the activations, through a ring in
// shared memory (cp.async.bulk, an mbarrier a stage), across slabs; consumer warps each own one
// lane and R tiles of rows; kReducers warps compute float32 rows of the projection where there are
// any, and add the lane sums of a slab in shared memory, then, over the cluster, in the block that
// owns the tile, while the consumers are at the next slab. The adjacency tree makes both splits
// free of bits. Loops are lean: sixty instructions of bookkeeping a stage, each waiting for the one
// before, took as long as the arithmetic (NOTES.md).
#pragma once

#include "kernels/q4_tile.cuh"
#include "kernels/shared_access.cuh"

namespace vcuda::gpu {

constexpr int kConsumers = arith::kQ4Lanes / 2;  // a lane each
constexpr int kReducers = 3, kRingThreads = (kConsumers + 1 + kReducers) * 32;
constexpr int kRingBytes = 80 << 10;                // of weights, or four stages: more is slower
constexpr int kStages = 16;                         // of a ring at most
constexpr int kMostTiles = 12;                      // of a slab
constexpr int kOwned = kMostTiles / 2 / kReducers;  // tiles that one reducer writes

// Float32 rows over the same inputs; rows 0: none.
struct FloatRows {
  const float* w;  // [rows, cols]
  const float* x;  // [m, cols]
  float* y;        // [m, ld of the projection]
  int rows, cols;
};

struct Projection {
  const uint8_t* weights;
  Q4Shape q;
  const uint8_t* act;  // one block of out.m rows
  Output out;
  FloatRows floats;
};

struct RingBarriers {
  uint64_t full[kStages], empty[kStages], exchange[2], sums, taken;
};

// Shared memory, in this order: barriers, lane sums, exchange, ring. A stage of the ring is a
// superstep's cells and its activations.
struct RingPlan {
  int sums, exchange, inbox;     // offsets; bytes of one of the two inboxes
  int ring, act, stage, stages;  // offset; the activations' in a stage; bytes of a stage; how many
  int bytes;

  RingPlan() = default;
  // For a projection of `tiles` tiles a cell and m rows; limit: of shared memory.
  RingPlan(int tiles, int m, int limit) {
    constexpr int cluster = 2;
    const int tile = few_rows(m) ? 256 : 512;
    sums = (static_cast<int>(sizeof(RingBarriers)) + 127) / 128 * 128;
    exchange = sums + kConsumers * tiles * tile;
    inbox = cluster * ((tiles + 1) / cluster) * tile;
    ring = exchange + 2 * inbox;
    act = kConsumers * tiles * kTileBytes;
    stage = act + (kConsumers * act_stride(m) + 127) / 128 * 128;
    const int most = kRingBytes / act < 4 ? 4 : kRingBytes / act, room = (limit - ring) / stage;
    stages = most < room ? most : room;
    if (stages > kStages) stages = kStages;
    bytes = ring + stages * stage;
  }
  bool fits() const { return stages >= 2; }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

__device__ __forceinline__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(count)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)),
               "r"(bytes)
               : "memory");
}
// More bytes for the barrier's phase, which does not end before a barrier_expect.
__device__ __forceinline__ void barrier_bytes(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait_%=;\n}" ::"r"(
          shared_at(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra "
      "wait_%=;\n}" ::"r"(shared_at(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_at(to)),
      "l"(from), "r"(bytes), "r"(shared_at(b))
      : "memory");
}
// Where the same place of block `rank` of the cluster is.
__device__ __forceinline__ uint32_t shared_at(const void* p, int rank) {
  uint32_t to;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_at(p)), "r"(rank));
  return to;
}
// Values into the same place of block `rank`, counted by its barrier.
__device__ __forceinline__ void send(const void* place, uint64_t* b, int rank, float2 v) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2, %3}, [%1];" ::
          "r"(shared_at(place, rank)),
      "r"(shared_at(b, rank)), "f"(v.x), "f"(v.y)
      : "memory");
}
__device__ __forceinline__ void send(const void* place, uint64_t* b, int rank, float4 v) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, "
      "[%1];" ::"r"(shared_at(place, rank)),
      "r"(shared_at(b, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
template <int Id, int Threads>
__device__ __forceinline__ void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}

// A thread's part of a cell: R tiles at one group.
template <int R>
struct Cell {
  uint32_t words[R][2], scales[R];

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
};

// Where a block stands in its cluster and the grid.
struct RingBlock {
  uint8_t* shared;
  RingBarriers* bars;
  int rank, first, step;  // block of the cluster; first slab, slabs from one to the next

  __device__ __forceinline__ explicit RingBlock(uint8_t* memory) {
    shared = memory;
    bars = reinterpret_cast<RingBarriers*>(memory);
    rank = static_cast<int>(blockIdx.x) % 2, first = blockIdx.x / 2, step = gridDim.x / 2;
  }
  // By every thread, first of all; ends with an arrival at the cluster's barrier, which meet()
  // completes.
  __device__ __forceinline__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i)
        barrier_init(&bars->full[i], 1), barrier_init(&bars->empty[i], kConsumers);
      barrier_init(&bars->exchange[0], 1), barrier_init(&bars->exchange[1], 1);
      barrier_init(&bars->sums, kConsumers * 32), barrier_init(&bars->taken, kReducers * 32);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  }
  __device__ __forceinline__ void meet() const {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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

// One thread. A stage is full when its weights and its activations have come.
struct RingProducer {
  const RingBlock& b;
  const RingPlan& plan;
  const Projection& p;
  int supersteps, total;   // stages of a slab, of all slabs
  uint32_t bytes, stride;  // weights of a stage; activations of a group
  // Where the walk over all weights stands, and the superstep's place in its slab.
  const uint8_t* weights;
  int slab, s = 0;

  __device__ __forceinline__ RingProducer(const RingBlock& block, const RingPlan& ring_plan,
                                          const Projection& projection)
      : b(block), plan(ring_plan), p(projection), slab(block.first) {
    supersteps = p.q.supersteps();
    total = (p.q.slabs() - b.first + b.step - 1) / b.step * supersteps;
    bytes = static_cast<uint32_t>(kConsumers * p.q.cell_bytes());
    stride = static_cast<uint32_t>(act_stride(p.out.m));
    weights = slab_weights();
  }
  // All of it. The first stages' weights need no predecessor: wait() is called behind them.
  template <class Wait>
  __device__ __forceinline__ void run(Wait wait) {
    const int filled = min(total, plan.stages);
    for (int i = 0; i < filled; ++i, next()) {
      barrier_bytes(&b.bars->full[i], bytes);
      bulk_copy(b.shared + plan.ring + i * plan.stage, weights, bytes, &b.bars->full[i]);
    }
    wait();
    asm volatile("fence.proxy.async.global;" ::: "memory");
    RingCursor at;
    for (int i = 0, superstep = 0; i < total; ++i, at.next(plan)) {
      uint8_t* stage = b.shared + plan.ring + at.stage * plan.stage;
      uint64_t* full = &b.bars->full[at.stage];
      // The second block may have no group in the last superstep.
      const int group = superstep * arith::kQ4Lanes + b.rank * kConsumers,
                groups = max(min(p.q.groups - group, kConsumers), 0);
      const uint32_t act_bytes = static_cast<uint32_t>(groups) * stride;
      if (i < filled) {
        barrier_expect(full, act_bytes);
      } else {
        barrier_wait(&b.bars->empty[at.stage], at.parity ^ 1);
        barrier_expect(full, bytes + act_bytes);
        bulk_copy(stage, weights, bytes, full);
        next();
      }
      if (groups)
        bulk_copy(stage + plan.act, p.act + static_cast<size_t>(group) * stride, act_bytes, full);
      if (++superstep == supersteps) superstep = 0;
    }
  }

 private:
  __device__ __forceinline__ const uint8_t* slab_weights() const {
    return p.weights + p.q.cell(slab, b.rank, 0, 0) * p.q.cell_bytes();
  }
  __device__ __forceinline__ void next() {
    weights += bytes;
    if (++s == supersteps) s = 0, slab += b.step, weights = slab_weights();
  }
};

// A warp.
template <int R, bool Few>
__device__ __forceinline__ void ring_consume(const RingBlock& b, const RingPlan& plan,
                                             const Projection& p) {
  static_assert(R <= kMostTiles);
  const Q4Shape& q = p.q;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int slabs = q.slabs(), supersteps = q.supersteps();
  const int own_groups =
      (q.groups - b.rank * kConsumers - warp + arith::kQ4Lanes - 1) / arith::kQ4Lanes;
  const ActOffsets<Few> offsets(lane, p.out.m);
  const int own_act = plan.act + warp * act_stride(p.out.m);
  TileSum<Few>* sums = reinterpret_cast<TileSum<Few>*>(b.shared + plan.sums) + warp * R * 32 + lane;
  const uint8_t* stages = b.shared + plan.ring;
  RingCursor at;
  uint32_t taken = 1;  // parity
  for (int slab = b.first; slab < slabs; slab += b.step, taken ^= 1) {
    TileSum<Few> sum[R] = {};
    for (int s = 0; s < supersteps; ++s) {
      const uint8_t* stage = stages + at.stage * plan.stage;
      uint64_t* empty = &b.bars->empty[at.stage];
      barrier_wait(&b.bars->full[at.stage], at.parity);
      at.next(plan);
      // What the arithmetic needs first comes first.
      const ActFragment<Few> x = offsets.load(stage + own_act);
      Cell<R> cell;
      cell.load(stage + warp * (R * kTileBytes), lane);
      auto give_back = [&] {
        __syncwarp();  // every lane has its part
        if (lane == 0) barrier_arrive(empty);
      };
      // With many tiles the loads are better among the arithmetic than all before it.
      constexpr bool kLate = R > 8;
      if (!kLate) give_back();
      if (s < own_groups) {
        const TileMath<Few> math(x);
#pragma unroll
        for (int r = 0; r < R; ++r)
          math.add(sum[r], cell.words[r][0], cell.words[r][1], cell.scales[r]);
      }
      if (kLate) give_back();
    }
    barrier_wait(&b.bars->taken, taken);  // the sums of the slab before
#pragma unroll
    for (int r = 0; r < R; ++r) sums[r * 32] = unscaled(sum[r]);
    barrier_arrive(&b.bars->sums);
  }
}

// reducer: 0 .. kReducers-1, a warp. What the results are added to must be there.
template <bool Few>
__device__ __forceinline__ void ring_reduce(const RingBlock& b, const RingPlan& plan,
                                            const Projection& p, int reducer) {
  const Q4Shape& q = p.q;
  const Output& out = p.out;
  const int lane = threadIdx.x % 32, slab_tiles = q.tiles, slabs = q.slabs();
  for (int task = blockIdx.x * kReducers + reducer; task < p.floats.rows * out.m;
       task += gridDim.x * kReducers) {
    const int r = task / out.m, i = task % out.m;
    const float *w = p.floats.w + static_cast<size_t>(r) * p.floats.cols,
                *x = p.floats.x + static_cast<size_t>(i) * p.floats.cols;
    float sum = 0.0f;
    int k = lane;
    for (; k + 32 * 31 < p.floats.cols;
         k += 32 * 32) {  // many loads on their way: this must end before the first lane sums come
      float a[32], c[32];
#pragma unroll
      for (int j = 0; j < 32; ++j) a[j] = w[k + 32 * j], c[j] = x[k + 32 * j];
#pragma unroll
      for (int j = 0; j < 32; ++j) sum = arith::fma32(a[j], c[j], sum);
    }
    for (; k < p.floats.cols; k += 32) sum = arith::fma32(w[k], x[k], sum);
    sum = warp_tree(sum);
    if (lane == 0) p.floats.y[static_cast<size_t>(i) * out.ld + r] = sum;
  }

  using Sum = TileSum<Few>;
  const Sum* sums = reinterpret_cast<const Sum*>(b.shared + plan.sums);
  const int owned_most = (slab_tiles + 1) / 2, owned = (slab_tiles - b.rank + 1) / 2,
            other = 1 - b.rank;
  uint32_t passes = 0;
  for (int slab = b.first; slab < slabs; slab += b.step, ++passes) {
    Sum* inbox = reinterpret_cast<Sum*>(b.shared + plan.exchange +
                                        static_cast<int>(passes % 2) * plan.inbox);
    uint64_t* arrived = &b.bars->exchange[passes % 2];
    Sum before[kOwned];  // asked for early: under the stream of weights a load takes long
#pragma unroll
    for (int j = 0; j < kOwned; ++j)
      if (const int i = reducer + j * kReducers; i < owned)
        before[j] = out.load<Sum>(slab * slab_tiles + i * 2 + b.rank, lane);
    if (reducer == 0 && lane == 0)
      barrier_expect(arrived, static_cast<uint32_t>(owned * 32 * sizeof(Sum)));
    barrier_wait(&b.bars->sums, passes % 2);
    for (int i = reducer; i < slab_tiles; i += kReducers) {
      const Sum v = tree<kConsumers>(sums + i * 32 + lane, slab_tiles * 32);
      Sum* place = inbox + (b.rank * owned_most + i / 2) * 32 + lane;
      if (i % 2 == b.rank) *place = v;
      else send(place, arrived, other, v);
    }
    barrier_arrive(&b.bars->taken);
    named_barrier<1, kReducers * 32>();  // this block's own sums
    barrier_wait_cluster(arrived, passes / 2 % 2);
#pragma unroll
    for (int j = 0; j < kOwned; ++j)
      if (const int i = reducer + j * kReducers; i < owned)
        out.store(slab * slab_tiles + i * 2 + b.rank, lane,
                  tree<2>(inbox + i * 32 + lane, owned_most * 32), before[j]);
    named_barrier<1, kReducers * 32>();  // read before the next sums invite the next but one
  }
}
#endif

}  // namespace vcuda::gpu
