// y = W x or y += W x for Q4 weights on Hopper: the whole step's bandwidth depends on this kernel.
//
// A persistent grid of clusters; a cluster's blocks share slabs of rows and split the contract's lanes (q4_layout.cuh). One producer
// thread a block streams cells through a ring in shared memory (cp.async.bulk, mbarriers) and starts before the activations
// exist; `warps` consumer warps each own one lane and `R` tiles of rows; kReducers warps add the lane sums of a slab in shared
// memory, then, over the cluster, in the block that owns the tile, while the consumers are at the next slab. The adjacency
// tree makes both splits free of bits.
#pragma once

#include "kernels/q4_tile.cuh"

namespace vcuda::gpu {

constexpr int kMaxStages = 16, kMaxSupersteps = 64, kReducers = 3;

__host__ __device__ constexpr int ring_threads(int warps) { return (warps + 1 + kReducers) * 32; }

// Shared memory, in this order: barriers, activations, reduction, exchange, ring.
struct RingPlan {
  int act, reduce, exchange, ring;  // offsets
  int stage_bytes, stages, bytes;

  RingPlan() = default;
  RingPlan(const Q4Shape& q, int m, int limit) {
    act = 1024;
    reduce = act + q.supersteps() * q.per_block() * act_stride(m);
    exchange = reduce + q.warps * q.tiles * 512;
    ring = exchange + (q.cluster > 1 ? 2 * q.cluster * ((q.slab_tiles() + q.cluster - 1) / q.cluster) * 512 : 0);
    ring = (ring + 127) / 128 * 128;
    stage_bytes = q.warps * q.cell_bytes();
    stages = limit > ring ? (limit - ring) / stage_bytes : 0;
    stages = stages < kMaxStages ? stages : kMaxStages;
    bytes = ring + stages * stage_bytes;
  }
};

inline bool ring_fits(const Q4Shape& q, int limit) {
  return q.supersteps() <= kMaxSupersteps && RingPlan(q, kRowBlock, limit).stages >= 2;
}

struct RingBarriers {
  uint64_t full[kMaxStages], empty[kMaxStages], act[kMaxSupersteps], exchange[2], sums, taken;
};
static_assert(sizeof(RingBarriers) <= 1024, "the barriers' place in RingPlan");

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait_%=;\n}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra wait_%=;\n}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes), "r"(shared_address(b))
               : "memory");
}
// 16 bytes into the same place of block `rank` of the cluster, counted by its barrier.
__device__ __forceinline__ void send(const void* place, uint64_t* b, int rank, float4 v) {
  asm volatile(
      "{\n.reg .b32 to, bar;\nmapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 bar, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [bar];\n}" ::"r"(shared_address(place)),
      "r"(shared_address(b)), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}

// One cell: R tiles at one group.
template <int R>
__device__ __forceinline__ void cell_fma(float (&sum)[R][4], const uint8_t* cell, int lane, const ActFragment& x) {
  uint32_t scales[R];
#pragma unroll
  for (int r = 0; r < R / 4; ++r) {
    const uint4 v = *reinterpret_cast<const uint4*>(cell + R * 256 + r * 128 + lane / 4 * 16);
    scales[4 * r] = v.x, scales[4 * r + 1] = v.y, scales[4 * r + 2] = v.z, scales[4 * r + 3] = v.w;
  }
  constexpr int kFours = R / 4 * 4, kRest = R % 4;
  if constexpr (kRest == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(cell + R * 256 + kFours * 32 + lane / 4 * 8);
    scales[kFours] = v.x, scales[kFours + 1] = v.y;
  } else {
#pragma unroll
    for (int r = 0; r < kRest; ++r) scales[kFours + r] = *reinterpret_cast<const uint32_t*>(cell + R * 256 + kFours * 32 + (lane / 4 * kRest + r) * 4);
  }
#pragma unroll
  for (int r = 0; r < R / 2; ++r) {
    const uint4 w = *reinterpret_cast<const uint4*>(cell + r * 512 + lane * 16);
    tile_fma(sum[2 * r], w.x, w.y, scales[2 * r], x);
    tile_fma(sum[2 * r + 1], w.z, w.w, scales[2 * r + 1], x);
  }
  if constexpr (R % 2 == 1) {
    const uint2 w = *reinterpret_cast<const uint2*>(cell + R / 2 * 512 + lane * 8);
    tile_fma(sum[R - 1], w.x, w.y, scales[R - 1], x);
  }
}
#endif

// grid: clusters * cluster blocks of ring_threads(W); q.warps == W, q.tiles == R. act: one block of out.m rows.
template <int W, int R>
static __global__ void __launch_bounds__(ring_threads(W), 1) kernel_project_ring(const uint8_t* weights, Q4Shape q, RingPlan plan, const uint8_t* act, Output out) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
  extern __shared__ __align__(128) uint8_t shared[];
  RingBarriers& bars = *reinterpret_cast<RingBarriers*>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int cluster = q.cluster, rank = cluster > 1 ? static_cast<int>(blockIdx.x) % cluster : 0;
  const int first = blockIdx.x / cluster, step = gridDim.x / cluster, slabs = q.slabs();
  const int per_block = q.per_block(), supersteps = q.supersteps(), stride = act_stride(out.m);
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) barrier_init(&bars.full[i], 1), barrier_init(&bars.empty[i], W);
    for (int i = 0; i < supersteps; ++i) barrier_init(&bars.act[i], 1);
    barrier_init(&bars.exchange[0], 1), barrier_init(&bars.exchange[1], 1);
    barrier_init(&bars.sums, W), barrier_init(&bars.taken, kReducers);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (cluster > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");

  if (warp == W) {  // producer
    if (lane == 0) {
      int stage = 0, filled = 0;
      uint32_t parity = 1;  // the first pass over the ring finds it empty
      bool waited = false;
      auto load_activations = [&] {
        wait_for_predecessor();
        for (int s = 0; s < supersteps; ++s) {
          const int group = s * arith::kQ4Lanes + rank * per_block, count = min(q.groups - group, per_block);
          if (count <= 0) continue;
          barrier_expect(&bars.act[s], count * stride);
          bulk_copy(shared + plan.act + s * per_block * stride, act + static_cast<size_t>(group) * stride, count * stride, &bars.act[s]);
        }
        waited = true;
      };
      for (int slab = first; slab < slabs; slab += step) {
        const uint8_t* from = weights + q.cell(slab, rank, 0, 0) * q.cell_bytes();
        for (int s = 0; s < supersteps; ++s, from += plan.stage_bytes) {
          if (!waited && filled == plan.stages) load_activations();
          barrier_wait(&bars.empty[stage], parity);
          barrier_expect(&bars.full[stage], plan.stage_bytes);
          bulk_copy(shared + plan.ring + stage * plan.stage_bytes, from, plan.stage_bytes, &bars.full[stage]);
          ++filled;
          if (++stage == plan.stages) stage = 0, parity ^= 1;
        }
      }
      if (!waited) load_activations();
    }
    __syncwarp();
    if (cluster > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }

  if (cluster > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  float4* sums = reinterpret_cast<float4*>(shared + plan.reduce);  // [W][R][32]
  if (warp > W) {  // reducers
    wait_for_predecessor();
    const int reducer = warp - W - 1, slab_tiles = R * q.split();
    float4* exchange = reinterpret_cast<float4*>(shared + plan.exchange);
    const int owned_most = (slab_tiles + cluster - 1) / cluster, owned = (slab_tiles - rank + cluster - 1) / cluster;
    for (int slab = first, pass = 0; slab < slabs; slab += step, ++pass) {
      float4* inbox = exchange + (pass % 2) * cluster * owned_most * 32;
      uint64_t* arrived = &bars.exchange[pass % 2];
      if (cluster > 1 && reducer == 0 && lane == 0) barrier_expect(arrived, owned * 512 * (cluster - 1));
      barrier_wait(&bars.sums, pass % 2);
      for (int i = reducer; i < slab_tiles; i += kReducers) {
        const float4 v = lane_tree(sums + (i / R * per_block * R + i % R) * 32 + lane, R * 32, per_block);
        if (cluster == 1) {
          out.store(slab * slab_tiles + i, lane, v);
        } else {
          float4* place = inbox + (rank * owned_most + i / cluster) * 32 + lane;
          if (i % cluster == rank) *place = v;
          else send(place, arrived, i % cluster, v);
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&bars.taken);
      if (cluster > 1) {
        asm volatile("bar.sync 1, %0;" ::"n"(kReducers * 32) : "memory");  // this block's own sums
        barrier_wait_cluster(arrived, (pass / 2) % 2);
        for (int i = reducer; i < owned; i += kReducers) out.store(slab * slab_tiles + i * cluster + rank, lane, lane_tree(inbox + i * 32 + lane, owned_most * 32, cluster));
        asm volatile("bar.sync 1, %0;" ::"n"(kReducers * 32) : "memory");  // read before the next sums invite the next but one
      }
    }
    return;
  }

  const int own_lane = warp % per_block;
  const ActOffsets offsets(lane, out.m);
  const uint8_t* x = shared + plan.act + own_lane * stride;
  const uint8_t* cells = shared + plan.ring + warp * R * kTileBytes;
  int stage = 0;
  uint32_t parity = 0;
  for (int slab = first, pass = 0; slab < slabs; slab += step, ++pass) {
    float sum[R][4] = {};
    for (int s = 0; s < supersteps; ++s) {
      barrier_wait(&bars.full[stage], parity);
      if (s * arith::kQ4Lanes + rank * per_block + own_lane < q.groups) {
        if (pass == 0) barrier_wait(&bars.act[s], 0);
        cell_fma<R>(sum, cells + stage * plan.stage_bytes, lane, offsets.load(x + s * per_block * stride));
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&bars.empty[stage]);
      if (++stage == plan.stages) stage = 0, parity ^= 1;
    }
    barrier_wait(&bars.taken, (pass % 2) ^ 1);  // the sums of the slab before
#pragma unroll
    for (int r = 0; r < R; ++r) sums[(warp * R + r) * 32 + lane] = {sum[r][0], sum[r][1], sum[r][2], sum[r][3]};
    __syncwarp();
    if (lane == 0) barrier_arrive(&bars.sums);
  }
#endif
}

}  // namespace vcuda::gpu
