// y = W x or y += W x for Q4 weights on Hopper: the whole step's bandwidth depends on this kernel.
//
// A persistent grid of clusters; a cluster's blocks share slabs of rows and split the contract's lanes (q4_layout.cuh). Each of W
// consumer warps owns one lane and R tiles of rows and streams its own cells through a ring of its own in shared memory
// (cp.async.bulk, an mbarrier a stage): it refills a stage as soon as it has read it, and starts before the activations
// exist; no warp waits for another. kReducers warps bring the activations, compute float32 rows of the projection where there
// are any, and add the lane sums of a slab in shared memory, then, over the cluster, in the block that owns the tile, while the
// consumers are at the next slab. The adjacency tree makes both splits free of bits.
#pragma once

#include "kernels/q4_tile.cuh"

namespace vcuda::gpu {

constexpr int kMaxStages = 8, kMaxSupersteps = 64, kReducers = 4;

__host__ __device__ constexpr int ring_threads(int warps) { return (warps + kReducers) * 32; }

// Float32 rows over the same inputs; rows 0: none.
struct FloatRows {
  const float* w;  // [rows, cols]
  const float* x;  // [m, cols]
  float* y;        // [m, ld of the projection]
  int rows, cols;
};

struct RingBarriers {
  uint64_t full[16][kMaxStages], act[kMaxSupersteps], exchange[2], sums, taken;
};

// Shared memory, in this order: barriers, activations, lane sums, exchange, rings.
struct RingPlan {
  int act, sums, exchange, ring;  // offsets
  int stages, bytes;

  RingPlan() = default;
  RingPlan(const Q4Shape& q, int m, int limit) {
    act = (static_cast<int>(sizeof(RingBarriers)) + 127) / 128 * 128;
    sums = act + q.supersteps() * q.per_block() * act_stride(m);
    exchange = sums + q.warps * q.tiles * 512;
    ring = exchange + (q.cluster > 1 ? 2 * q.cluster * ((q.slab_tiles() + q.cluster - 1) / q.cluster) * 512 : 0);
    ring = (ring + 127) / 128 * 128;
    const int stage = q.warps * q.cell_bytes();
    stages = limit > ring ? (limit - ring) / stage : 0;
    stages = stages < kMaxStages ? stages : kMaxStages;
    bytes = ring + stages * stage;
  }
};

inline bool ring_fits(const Q4Shape& q, int limit) {
  return q.supersteps() <= kMaxSupersteps && RingPlan(q, kRowBlock, limit).stages >= 2;
}

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

// A thread's part of a cell: R tiles at one group.
template <int R>
struct Cell {
  uint32_t words[R][2], scales[R];

  __device__ __forceinline__ void load(const uint8_t* cell, int lane) {
#pragma unroll
    for (int r = 0; r < R / 2; ++r) {
      const uint4 w = *reinterpret_cast<const uint4*>(cell + r * 512 + lane * 16);
      words[2 * r][0] = w.x, words[2 * r][1] = w.y, words[2 * r + 1][0] = w.z, words[2 * r + 1][1] = w.w;
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
      for (int r = 0; r < kRest; ++r) scales[kFours + r] = *reinterpret_cast<const uint32_t*>(cell + kFours * 32 + (lane / 4 * kRest + r) * 4);
    }
  }
};
#endif

// grid: clusters * cluster blocks of ring_threads(W); q.warps == W, q.tiles == R. act: one block of out.m rows.
template <int W, int R>
static __global__ void __launch_bounds__(ring_threads(W), 1)
    kernel_project_ring(const uint8_t* weights, Q4Shape q, RingPlan plan, const uint8_t* act, Output out, FloatRows floats) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
  extern __shared__ __align__(128) uint8_t shared[];
  RingBarriers& bars = *reinterpret_cast<RingBarriers*>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int cluster = q.cluster, rank = cluster > 1 ? static_cast<int>(blockIdx.x) % cluster : 0;
  const int first = blockIdx.x / cluster, step = gridDim.x / cluster, slabs = q.slabs();
  const int per_block = q.per_block(), supersteps = q.supersteps(), stride = act_stride(out.m);
  constexpr int kCellBytes = R * kTileBytes;
  float4* sums = reinterpret_cast<float4*>(shared + plan.sums);  // [W][R][32]

  // A consumer's cells of a slab are consecutive in memory.
  int ahead_slab = first, ahead_left = supersteps;  // what the next refill fetches
  const uint8_t* ahead = nullptr;
  uint8_t* ring = shared + plan.ring + warp * plan.stages * kCellBytes;
  auto stream_of = [&](int slab) { return weights + q.cell(slab, rank, warp, 0) * kCellBytes; };
  auto refill = [&](int stage) {
    if (ahead_slab >= slabs) return;
    if (lane == 0) {
      barrier_expect(&bars.full[warp][stage], kCellBytes);
      bulk_copy(ring + stage * kCellBytes, ahead, kCellBytes, &bars.full[warp][stage]);
    }
    ahead += kCellBytes;
    if (--ahead_left == 0) {
      ahead_slab += step, ahead_left = supersteps;
      ahead = stream_of(ahead_slab);
    }
  };
  if (warp < W) {
    if (lane < plan.stages) barrier_init(&bars.full[warp][lane], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    ahead = stream_of(first);
    for (int i = 0; i < plan.stages; ++i) refill(i);
  } else if (warp == W && lane == 0) {
    for (int i = 0; i < supersteps; ++i) barrier_init(&bars.act[i], 1);
    barrier_init(&bars.exchange[0], 1), barrier_init(&bars.exchange[1], 1);
    barrier_init(&bars.sums, W), barrier_init(&bars.taken, kReducers);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (cluster > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");

  if (warp >= W) {  // reducers
    const int reducer = warp - W, slab_tiles = R * q.split();
    wait_for_predecessor();
    if (reducer == 0 && lane == 0)
      for (int s = 0; s < supersteps; ++s) {
        const int group = s * arith::kQ4Lanes + rank * per_block, count = min(q.groups - group, per_block);
        if (count <= 0) continue;
        barrier_expect(&bars.act[s], count * stride);
        bulk_copy(shared + plan.act + s * per_block * stride, act + static_cast<size_t>(group) * stride, count * stride, &bars.act[s]);
      }
    __syncwarp();
    for (int task = blockIdx.x * kReducers + reducer; task < floats.rows * out.m; task += gridDim.x * kReducers) {
      const int r = task / out.m, i = task % out.m;
      const float *w = floats.w + static_cast<size_t>(r) * floats.cols, *x = floats.x + static_cast<size_t>(i) * floats.cols;
      float sum = 0.0f;
#pragma unroll 8
      for (int k = lane; k < floats.cols; k += 32) sum = arith::fma32(w[k], x[k], sum);
      sum = warp_tree(sum);
      if (lane == 0) floats.y[static_cast<size_t>(i) * out.ld + r] = sum;
    }
    if (cluster > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");

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
        for (int i = reducer; i < owned; i += kReducers)
          out.store(slab * slab_tiles + i * cluster + rank, lane, lane_tree(inbox + i * 32 + lane, owned_most * 32, cluster));
        asm volatile("bar.sync 1, %0;" ::"n"(kReducers * 32) : "memory");  // read before the next sums invite the next but one
      }
    }
    return;
  }

  if (cluster > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  const int own_lane = warp % per_block, own_groups = (q.groups - rank * per_block - own_lane + arith::kQ4Lanes - 1) / arith::kQ4Lanes;
  const ActOffsets offsets(lane, out.m);
  const int x_step = per_block * stride;
  int stage = 0;
  uint32_t parity = 0;
  for (int slab = first, pass = 0; slab < slabs; slab += step, ++pass) {
    float sum[R][4] = {};
    const uint8_t* x = shared + plan.act + own_lane * stride;
    for (int s = 0; s < supersteps; ++s, x += x_step) {
      Cell<R> cell;
      barrier_wait(&bars.full[warp][stage], parity);
      cell.load(ring + stage * kCellBytes, lane);
      __syncwarp();  // every lane has its part: the stage is free
      refill(stage);
      if (++stage == plan.stages) stage = 0, parity ^= 1;
      if (s >= own_groups) break;  // past the last input: the rest of the slab is padding (at most this superstep)
      if (pass == 0) barrier_wait(&bars.act[s], 0);
      const ActFragment fragment = offsets.load(x);
#pragma unroll
      for (int r = 0; r < R; ++r) tile_fma(sum[r], cell.words[r][0], cell.words[r][1], cell.scales[r], fragment);
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
