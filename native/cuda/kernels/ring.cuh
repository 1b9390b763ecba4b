// The projection engine on Hopper (the whole step's bandwidth depends on it): the roles of a
// block's warps in one projection.
//
// Clusters of two blocks share slabs of rows and split the contract's lanes (q4_layout.cuh). In a
// block, one producer thread streams the cells of all warps through a ring in shared memory
// (cp.async.bulk, an mbarrier a stage), across passes; W consumer warps each own one lane and R
// tiles of rows; kReducers warps bring the activations, compute float32 rows of the projection
// where there are any, and add the lane sums of a slab in shared memory, then, over the cluster, in
// the block that owns the tile, while the consumers are at the next slab. The adjacency tree makes
// both splits free of bits.
#pragma once

#include "kernels/q4_tile.cuh"

namespace vcuda::gpu {

constexpr int kConsumers = 8, kReducers = 3, kRingThreads = (kConsumers + 1 + kReducers) * 32;
constexpr int kStages = 16;  // stages in flight at most
// Supersteps of activations held at most; more are brought again for each pass.
constexpr int kActSlots = 10;

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
  uint64_t full[kStages], empty[kStages], act[kActSlots], act_empty[kActSlots], exchange[2], sums,
      taken;
  uint32_t start[kStages];  // the producer's note of each stage in flight
};

// Shared memory, in this order: barriers, activations, lane sums, exchange, ring.
struct RingPlan {
  int act, slot, slots;       // offset, bytes and number of activation slots
  int sums, exchange, inbox;  // offsets; bytes of one of the two inboxes
  int ring, ring_bytes, bytes;

  RingPlan() = default;
  // For a projection of `tiles` tiles a cell and `supersteps` supersteps, m rows; limit: of
  // shared memory, most: of the ring.
  RingPlan(int tiles, int supersteps, int m, int limit, int most) {
    constexpr int cluster = 2, lanes = arith::kQ4Lanes / cluster;
    act = (static_cast<int>(sizeof(RingBarriers)) + 127) / 128 * 128;
    slot = lanes * act_stride(m);
    slots = supersteps < kActSlots ? supersteps : kActSlots;
    sums = act + (slots * slot + 127) / 128 * 128;
    exchange = sums + kConsumers * tiles * 512;
    inbox = cluster * ((tiles + 1) / cluster) * 512;
    ring = exchange + 2 * inbox;
    ring_bytes = (limit - ring < most ? limit - ring : most) / 128 * 128;
    bytes = ring + ring_bytes;
  }
  bool fits(int tiles) const { return ring_bytes >= 2 * kConsumers * tiles * kTileBytes; }
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
// 16 bytes into the same place of block `rank` of the cluster, counted by its barrier.
__device__ __forceinline__ void send(const void* place, uint64_t* b, int rank, float4 v) {
  asm volatile(
      "{\n.reg .b32 to, bar;\nmapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 bar, "
      "%1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, "
      "[bar];\n}" ::"r"(shared_address(place)),
      "r"(shared_address(b)), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
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
  __device__ __forceinline__ void init(const RingPlan& plan) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i)
        barrier_init(&bars->full[i], 1), barrier_init(&bars->empty[i], kConsumers);
      for (int i = 0; i < kActSlots; ++i)
        barrier_init(&bars->act[i], 1), barrier_init(&bars->act_empty[i], kConsumers);
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

// Supersteps in which this block has inputs.
__device__ __forceinline__ int act_supersteps(const Q4Shape& q, int rank) {
  return (q.groups - rank * q.per_block() + arith::kQ4Lanes - 1) / arith::kQ4Lanes;
}

// Places of consecutive stages in the ring: a stage does not wrap.
struct RingPlace {
  uint32_t at = 0, next = 0,
           count = 0;  // byte of the ring; the same, counted without end; stages so far
  // The stage's place; the ring's next byte is behind it.
  __device__ __forceinline__ uint32_t take(uint32_t bytes, uint32_t ring_bytes) {
    if (at + bytes > ring_bytes) next += ring_bytes - at, at = 0;
    const uint32_t start = at;
    at += bytes, next += bytes;
    ++count;
    return start;
  }
};

// One thread.
struct RingProducer {
  RingPlace place;
  uint32_t tail = 0;  // oldest stage not known to be free

  __device__ __forceinline__ void run(const RingBlock& b, const RingPlan& plan,
                                      const uint8_t* weights, const Q4Shape& q) {
    const uint32_t bytes = static_cast<uint32_t>(kConsumers * q.cell_bytes()),
                   ring_bytes = static_cast<uint32_t>(plan.ring_bytes);
    const int slabs = q.slabs(), supersteps = q.supersteps();
    for (int slab = b.first; slab < slabs; slab += b.step) {
      const uint8_t* from = weights + q.cell(slab, b.rank, 0, 0) * q.cell_bytes();
      for (int s = 0; s < supersteps; ++s, from += bytes) {
        const uint32_t index = place.count, start = place.take(bytes, ring_bytes);
        while (tail < index && (index - tail >= kStages ||
                                place.next - b.bars->start[tail % kStages] > ring_bytes)) {
          barrier_wait(&b.bars->empty[tail % kStages], tail / kStages % 2);
          ++tail;
        }
        b.bars->start[index % kStages] = place.next - bytes;
        barrier_expect(&b.bars->full[index % kStages], bytes);
        bulk_copy(b.shared + plan.ring + start, from, bytes, &b.bars->full[index % kStages]);
      }
    }
  }
};

struct RingConsumer {
  RingPlace place;
  uint32_t act_parity = 0, passes = 0;

  template <int R>
  __device__ __forceinline__ void run(const RingBlock& b, const RingPlan& plan,
                                      const Projection& p) {
    const Q4Shape& q = p.q;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int slabs = q.slabs(), supersteps = q.supersteps(),
              with_inputs = act_supersteps(q, b.rank);
    const int own_groups =
        (q.groups - b.rank * q.per_block() - warp + arith::kQ4Lanes - 1) / arith::kQ4Lanes;
    const bool cycle = with_inputs > plan.slots;
    constexpr uint32_t kBytes = kConsumers * R * kTileBytes;
    const ActOffsets offsets(lane, p.out.m);
    const uint8_t* x = b.shared + plan.act + warp * act_stride(p.out.m);
    float4* sums = reinterpret_cast<float4*>(b.shared + plan.sums);
    int slot = 0;
    bool fresh = true;  // the slots have not been waited for
    for (int slab = b.first; slab < slabs; slab += b.step, ++passes) {
      float sum[R][4] = {};
      if (!cycle) slot = 0;
      for (int s = 0; s < supersteps; ++s) {
        const uint32_t index = place.count,
                       start = place.take(kBytes, static_cast<uint32_t>(plan.ring_bytes));
        Cell<R> cell;
        barrier_wait(&b.bars->full[index % kStages], index / kStages % 2);
        cell.load(b.shared + plan.ring + start + warp * (R * kTileBytes), lane);
        __syncwarp();  // every lane has its part
        if (lane == 0) barrier_arrive(&b.bars->empty[index % kStages]);
        if (s >= with_inputs) continue;
        if (fresh || cycle) {
          barrier_wait(&b.bars->act[slot], act_parity >> slot & 1u);
          act_parity ^= 1u << slot;
        }
        if (s < own_groups) {
          const ActFragment fragment = offsets.load(x + slot * plan.slot);
#pragma unroll
          for (int r = 0; r < R; ++r)
            tile_fma(sum[r], cell.words[r][0], cell.words[r][1], cell.scales[r], fragment);
        }
        if (cycle) {
          __syncwarp();
          if (lane == 0) barrier_arrive(&b.bars->act_empty[slot]);
        }
        if (++slot == plan.slots) slot = 0;
      }
      fresh = false;
      barrier_wait(&b.bars->taken, (passes % 2) ^ 1);  // the sums of the slab before
#pragma unroll
      for (int r = 0; r < R; ++r)
        sums[(warp * R + r) * 32 + lane] = {sum[r][0], sum[r][1], sum[r][2], sum[r][3]};
      barrier_arrive(&b.bars->sums);
    }
  }
};

struct RingReducer {
  uint32_t passes = 0, act_empty_parity = 0;

  // reducer: 0 .. kReducers-1, a warp. The activations' bytes must be there.
  __device__ __forceinline__ void run(const RingBlock& b, const RingPlan& plan, const Projection& p,
                                      int reducer) {
    const Q4Shape& q = p.q;
    const Output& out = p.out;
    const int lane = threadIdx.x % 32, slab_tiles = q.tiles, slabs = q.slabs();
    if (reducer == 0 && lane == 0 && b.first < slabs) bring_activations(b, plan, p);
    __syncwarp();
    for (int task = blockIdx.x * kReducers + reducer; task < p.floats.rows * out.m;
         task += gridDim.x * kReducers) {
      const int r = task / out.m, i = task % out.m;
      const float *w = p.floats.w + static_cast<size_t>(r) * p.floats.cols,
                  *x = p.floats.x + static_cast<size_t>(i) * p.floats.cols;
      float sum = 0.0f;
      int k = lane;
      for (; k + 32 * 31 < p.floats.cols;
           k +=
           32 * 32) {  // many loads on their way: this must end before the first lane sums come
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

    const float4* sums = reinterpret_cast<const float4*>(b.shared + plan.sums);
    const int owned_most = (slab_tiles + 1) / 2, owned = (slab_tiles - b.rank + 1) / 2,
              other = 1 - b.rank;
    for (int slab = b.first; slab < slabs; slab += b.step, ++passes) {
      float4* inbox = reinterpret_cast<float4*>(b.shared + plan.exchange +
                                                static_cast<int>(passes % 2) * plan.inbox);
      uint64_t* arrived = &b.bars->exchange[passes % 2];
      if (reducer == 0 && lane == 0) barrier_expect(arrived, static_cast<uint32_t>(owned * 512));
      barrier_wait(&b.bars->sums, passes % 2);
      for (int i = reducer; i < slab_tiles; i += kReducers) {
        const float4 v = tree4<kConsumers>(sums + i * 32 + lane, slab_tiles * 32);
        float4* place = inbox + (b.rank * owned_most + i / 2) * 32 + lane;
        if (i % 2 == b.rank) *place = v;
        else send(place, arrived, other, v);
      }
      barrier_arrive(&b.bars->taken);
      named_barrier<1, kReducers * 32>();  // this block's own sums
      barrier_wait_cluster(arrived, passes / 2 % 2);
      for (int i = reducer; i < owned; i += kReducers)
        out.store(slab * slab_tiles + i * 2 + b.rank, lane,
                  tree4<2>(inbox + i * 32 + lane, owned_most * 32));
      named_barrier<1, kReducers * 32>();  // read before the next sums invite the next but one
    }
  }

 private:
  __device__ __forceinline__ void bring_activations(const RingBlock& b, const RingPlan& plan,
                                                    const Projection& p) {
    const Q4Shape& q = p.q;
    const int stride = act_stride(p.out.m), with_inputs = act_supersteps(q, b.rank),
              per_block = q.per_block();
    const bool cycle = with_inputs > plan.slots;
    const int passes_here = (q.slabs() - b.first + b.step - 1) / b.step,
              total = cycle ? with_inputs * passes_here : with_inputs;
    asm volatile("fence.proxy.async.global;" ::: "memory");
    for (int i = 0, s = 0, slot = 0; i < (cycle ? total + plan.slots : total); ++i) {
      if (i >= plan.slots) {  // only where slots are used again: the use before has ended
        barrier_wait(&b.bars->act_empty[slot], act_empty_parity >> slot & 1u);
        act_empty_parity ^= 1u << slot;
      }
      if (i < total) {
        const int group = s * arith::kQ4Lanes + b.rank * per_block,
                  count = min(q.groups - group, per_block);
        barrier_expect(&b.bars->act[slot], static_cast<uint32_t>(count * stride));
        bulk_copy(b.shared + plan.act + slot * plan.slot,
                  p.act + static_cast<size_t>(group) * stride,
                  static_cast<uint32_t>(count * stride), &b.bars->act[slot]);
      }
      if (++s == with_inputs) s = 0;
      if (++slot == plan.slots) slot = 0;
    }
  }
};
#endif

}  // namespace vcuda::gpu
