// The projection engine on Hopper (the whole step's bandwidth depends on it): the roles of a
// block's warps in one projection.
//
// Clusters of two blocks share slabs of rows and split the contract's lanes (q4_layout.cuh). In a
// block, a stage of the ring holds one superstep: its weights, brought by one thread ahead of
// everything else, and its activations, brought by another one once they exist (cp.async.bulk, an
// mbarrier each). Two consumer warps share a lane, each with one half of the slab's tiles: four
// warps a scheduler hide the latencies of shared memory and tensor cores, which two do not. The
// reducer warps add the lane sums of a slab in shared memory, then, over the cluster, in the block
// that owns the tile, while the consumers are at the next slab; one of them has computed float32
// rows of the projection before, where there are any. The adjacency tree makes both splits free of
// bits.
#pragma once

#include "kernels/q4_tile.cuh"

namespace vcuda::gpu {

constexpr int kConsumers = 16, kReducers = 2, kCluster = 2;
constexpr int kWeightsWarp = kConsumers, kActsWarp = kConsumers + 1, kFirstReducer = kConsumers + 2;
constexpr int kRingThreads = (kConsumers + 2 + kReducers) * 32;
constexpr int kConsumerRegisters = 104, kOtherRegisters = 64;  // 96 each at the start
constexpr int kStages = 16;                                    // stages in flight at most
// Float rows: chunks of activations on their way, columns of one.
constexpr int kFloatTurns = 4, kFloatChunk = 320;

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
  uint64_t full[kStages], empty[kStages], exchange[2], sums, taken, float_weights,
      float_x[kFloatTurns];
};

// Shared memory, in this order: barriers, lane sums, exchange, float rows, stages of
// [weights][activations].
struct RingPlan {
  int sums, exchange, inbox;     // offsets; bytes of one of the two inboxes
  int float_w, float_x;          // offsets of the float rows' weights and activations
  int ring, stage, act, stages;  // offset; bytes of a stage; its activations' offset; stages
  int bytes;

  RingPlan() = default;
  // For a projection of `tiles` tiles a slab, m rows; float_cols: of the float rows, 0 for none;
  // limit: bytes of shared memory; most: of the ring's weights.
  RingPlan(int tiles, int m, int float_cols, int limit, int most) {
    constexpr int lanes = arith::kQ4Lanes / kCluster;
    sums = round_up(sizeof(RingBarriers));
    exchange = sums + lanes * tiles * 512;
    inbox = kCluster * ((tiles + 1) / kCluster) * 512;
    float_w = exchange + 2 * inbox;
    float_x = float_w + round_up(static_cast<size_t>(float_cols) * 4);
    ring = float_x + (float_cols ? kFloatTurns * m * kFloatChunk * 4 : 0);
    act = round_up(lanes * tiles * kTileBytes);
    stage = act + round_up(lanes * act_stride(m));
    stages = (limit - ring) / stage;
    if (stages > most / act) stages = most / act;
    if (stages > kStages) stages = kStages;
    if (stages < 2) stages = 2;
    bytes = ring + stages * stage;
  }
  bool fits(int limit) const { return bytes <= limit; }

 private:
  static int round_up(size_t n) { return static_cast<int>((n + 127) / 128 * 128); }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait_%=;\n}" ::"r"(
          shared_address(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra "
      "wait_%=;\n}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(b))
      : "memory");
}
// Into the same place of block `rank` of the cluster, counted by its barrier.
__device__ __forceinline__ void send(const void* place, uint64_t* b, int rank, float4 v) {
  asm volatile(
      "{\n.reg .b32 to, bar;\nmapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 bar, "
      "%1, %2;\nst.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, "
      "%5, %6}, [bar];\n}" ::"r"(shared_address(place)),
      "r"(shared_address(b)), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
__device__ __forceinline__ void send(const void* place, uint64_t* b, int rank, float2 v) {
  asm volatile(
      "{\n.reg .b32 to, bar;\nmapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 bar, "
      "%1, %2;\nst.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, "
      "[bar];\n}" ::"r"(shared_address(place)),
      "r"(shared_address(b)), "r"(rank), "f"(v.x), "f"(v.y)
      : "memory");
}
// Registers of a warpgroup's threads from here on: the consumers take what the other roles leave.
template <int N>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
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
    rank = static_cast<int>(blockIdx.x) % kCluster, first = blockIdx.x / kCluster,
    step = gridDim.x / kCluster;
  }
  // By every thread, first of all; ends with an arrival at the cluster's barrier, which meet()
  // completes.
  __device__ __forceinline__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i)
        barrier_init(&bars->full[i], 2), barrier_init(&bars->empty[i], kConsumers);
      barrier_init(&bars->exchange[0], 1), barrier_init(&bars->exchange[1], 1);
      barrier_init(&bars->float_weights, 1);
      for (uint64_t& x : bars->float_x) barrier_init(&x, 1);
      barrier_init(&bars->sums, kConsumers), barrier_init(&bars->taken, kReducers);
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
  __device__ __forceinline__ uint8_t* memory(const RingBlock& b, const RingPlan& plan) const {
    return b.shared + plan.ring + stage * plan.stage;
  }
  __device__ __forceinline__ void wait_empty(const RingBlock& b) const {
    barrier_wait(&b.bars->empty[stage], parity ^ 1);
  }
};

// One thread: the weights.
__device__ __forceinline__ void ring_weights(const RingBlock& b, const RingPlan& plan,
                                             const uint8_t* weights, const Q4Shape& q) {
  const uint32_t bytes = static_cast<uint32_t>(q.stage_bytes());
  const int slabs = q.slabs(), supersteps = q.supersteps();
  RingCursor at;
  for (int slab = b.first; slab < slabs; slab += b.step) {
    const uint8_t* from = weights + q.stage(slab, b.rank, 0);
    for (int s = 0; s < supersteps; ++s, from += bytes, at.next(plan)) {
      at.wait_empty(b);
      barrier_expect(&b.bars->full[at.stage], bytes);
      bulk_copy(at.memory(b, plan), from, bytes, &b.bars->full[at.stage]);
    }
  }
}

// One thread: the activations, which are there.
__device__ __forceinline__ void ring_acts(const RingBlock& b, const RingPlan& plan,
                                          const Projection& p) {
  const Q4Shape& q = p.q;
  const int stride = act_stride(p.out.m), slabs = q.slabs(), supersteps = q.supersteps();
  RingCursor at;
  asm volatile("fence.proxy.async.global;" ::: "memory");
  for (int slab = b.first; slab < slabs; slab += b.step) {
    int group = b.rank * q.lanes();
    for (int s = 0; s < supersteps; ++s, group += arith::kQ4Lanes, at.next(plan)) {
      at.wait_empty(b);
      const int bytes = min(q.groups - group, q.lanes()) * stride;
      if (bytes <= 0) {  // the second block may have no group in the last superstep
        barrier_arrive(&b.bars->full[at.stage]);
        continue;
      }
      barrier_expect(&b.bars->full[at.stage], static_cast<uint32_t>(bytes));
      bulk_copy(at.memory(b, plan) + plan.act, p.act + static_cast<size_t>(group) * stride,
                static_cast<uint32_t>(bytes), &b.bars->full[at.stage]);
    }
  }
}

// A consumer warp of the half whose cells have R tiles.
template <int R, bool Few>
__device__ __forceinline__ void ring_consume(const RingBlock& b, const RingPlan& plan,
                                             const Projection& p) {
  const Q4Shape& q = p.q;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp / q.lanes(),
            own = warp % q.lanes();  // the contract's lane, of the block's
  const int slabs = q.slabs(), supersteps = q.supersteps();
  const int groups = (q.groups - b.rank * q.lanes() - own + arith::kQ4Lanes - 1) / arith::kQ4Lanes;
  const ActOffsets<Few> offsets(lane, p.out.m);
  const int cell_at = q.cell(half, own), act_at = plan.act + own * act_stride(p.out.m);
  TileSum<Few>* sums = reinterpret_cast<TileSum<Few>*>(b.shared + plan.sums) +
                       (own * q.tiles + half * q.half_tiles(0)) * 32 + lane;
  RingCursor at;
  uint32_t taken = 1;  // parity
  for (int slab = b.first; slab < slabs; slab += b.step, taken ^= 1) {
    TileSum<Few> sum[R] = {};
    for (int s = 0; s < supersteps; ++s) {
      const uint8_t* stage = at.memory(b, plan);
      uint64_t* empty = &b.bars->empty[at.stage];
      barrier_wait(&b.bars->full[at.stage], at.parity);
      at.next(plan);
      Cell<R> cell;
      cell.load(stage + cell_at, lane);
      const ActFragment<Few> x = offsets.load(stage + act_at);
      __syncwarp();  // every lane has its part
      if (lane == 0) barrier_arrive(empty);
      if (s < groups)
#pragma unroll
        for (int r = 0; r < R; ++r)
          tile_fma<Few>(sum[r], cell.words[r][0], cell.words[r][1], cell.scales[r], x);
    }
    barrier_wait(&b.bars->taken, taken);  // the sums of the slab before
#pragma unroll
    for (int r = 0; r < R; ++r) sums[r * 32] = sum[r];
    __syncwarp();
    if (lane == 0) barrier_arrive(&b.bars->sums);
  }
}

// One reducer warp: float32 rows of the projection. Under the load of the weights' stream an access
// waits too long to be issued load by load: bulk copies bring the whole weight row, before anything
// else, then the activations in chunks of all rows, several on their way. A lane takes inputs
// lane, lane + 32, ... in this order.
struct FloatReducer {
  const RingBlock& b;
  const RingPlan& plan;
  const FloatRows& f;
  int m, ld;

  __device__ __forceinline__ int chunks() const { return ceil_div(f.cols, kFloatChunk); }
  __device__ __forceinline__ float* chunk(int turn) const {
    return reinterpret_cast<float*>(b.shared + plan.float_x) + turn * m * kFloatChunk;
  }
  __device__ __forceinline__ void bring_weights(int row) const {  // one thread
    if (row >= f.rows) return;
    const uint32_t bytes = static_cast<uint32_t>(f.cols) * 4;
    barrier_expect(&b.bars->float_weights, bytes);
    bulk_copy(b.shared + plan.float_w, f.w + static_cast<size_t>(row) * f.cols, bytes,
              &b.bars->float_weights);
  }
  __device__ __forceinline__ void bring_chunk(int c) const {  // one thread
    if (c >= chunks()) return;
    uint64_t* bar = &b.bars->float_x[c % kFloatTurns];
    const uint32_t bytes = static_cast<uint32_t>(min(f.cols - c * kFloatChunk, kFloatChunk)) * 4;
    barrier_expect(bar, bytes * m);
    for (int i = 0; i < m; ++i)
      bulk_copy(chunk(c % kFloatTurns) + i * kFloatChunk,
                f.x + static_cast<size_t>(i) * f.cols + c * kFloatChunk, bytes, bar);
  }
  // The weights of row blockIdx.x have been asked for; the activations exist.
  __device__ __forceinline__ void run() const {
    const int lane = threadIdx.x % 32;
    uint32_t weights_parity = 0, x_parity = 0;  // of x: a bit a turn
    asm volatile("fence.proxy.async.global;" ::: "memory");
    for (int row = blockIdx.x; row < f.rows; row += gridDim.x) {
      if (lane == 0)
        for (int c = 0; c < kFloatTurns; ++c) bring_chunk(c);
      barrier_wait(&b.bars->float_weights, weights_parity);
      weights_parity ^= 1;
      const float* w = reinterpret_cast<const float*>(b.shared + plan.float_w);
      float sum[kRowBlock] = {};
      for (int c = 0; c < chunks(); ++c, w += kFloatChunk) {
        const int turn = c % kFloatTurns;
        barrier_wait(&b.bars->float_x[turn], x_parity >> turn & 1);
        x_parity ^= 1u << turn;
        const float* x = chunk(turn);
        for (int k = lane; k < min(f.cols - c * kFloatChunk, kFloatChunk); k += 32) {
          const float weight = w[k];
#pragma unroll
          for (int i = 0; i < kRowBlock; ++i)
            if (i < m) sum[i] = arith::fma32(weight, x[i * kFloatChunk + k], sum[i]);
        }
        __syncwarp();  // the chunk has been read
        if (lane == 0) bring_chunk(c + kFloatTurns);
      }
#pragma unroll
      for (int i = 0; i < kRowBlock; ++i) {
        if (i >= m) break;
        const float v = warp_tree(sum[i]);
        if (lane == 0) f.y[static_cast<size_t>(i) * ld + row] = v;
      }
      if (lane == 0) bring_weights(row + gridDim.x);
    }
  }
};

// A reducer warp: 0 .. kReducers-1. What the results are added to must be there.
template <bool Few>
__device__ __forceinline__ void ring_reduce(const RingBlock& b, const RingPlan& plan,
                                            const Projection& p, int reducer) {
  const Q4Shape& q = p.q;
  const Output& out = p.out;
  using Sum = TileSum<Few>;
  constexpr int kLanes = arith::kQ4Lanes / kCluster;
  const int lane = threadIdx.x % 32, tiles = q.tiles, slabs = q.slabs();
  const Sum* sums = reinterpret_cast<const Sum*>(b.shared + plan.sums) + lane;
  const int owned_most = (tiles + 1) / kCluster, owned = (tiles - b.rank + 1) / kCluster;
  uint32_t passes = 0;
  for (int slab = b.first; slab < slabs; slab += b.step, ++passes) {
    Sum* inbox = reinterpret_cast<Sum*>(b.shared + plan.exchange +
                                        static_cast<int>(passes % 2) * plan.inbox);
    uint64_t* arrived = &b.bars->exchange[passes % 2];
    if (reducer == 0 && lane == 0)
      barrier_expect(arrived, static_cast<uint32_t>(owned * 32 * sizeof(Sum)));
    barrier_wait(&b.bars->sums, passes % 2);
    for (int i = reducer; i < tiles; i += kReducers) {
      const Sum v = tree<kLanes>(sums + i * 32, tiles * 32);
      Sum* place = inbox + (b.rank * owned_most + i / 2) * 32 + lane;
      if (i % 2 == b.rank) *place = v;
      else send(place, arrived, 1 - b.rank, v);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&b.bars->taken);
    named_barrier<1, kReducers * 32>();  // this block's own sums
    barrier_wait_cluster(arrived, passes / 2 % 2);
    for (int i = reducer; i < owned; i += kReducers)
      out.store(slab * tiles + i * 2 + b.rank, lane,
                tree<kCluster>(inbox + i * 32 + lane, owned_most * 32));
    named_barrier<1, kReducers * 32>();  // read before the next sums invite the next but one
  }
}
#endif

}  // namespace vcuda::gpu
