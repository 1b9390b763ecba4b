// The reducers of a projection's block (ring.cuh): float32 rows beside the quantized ones, and the
// lane sums' way to the outputs.
#pragma once

#include "kernels/ring.cuh"

namespace vcuda::gpu {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

// A float32 row's products with the rows i, i + 1, ... of activations, Rows of them, by a warp.
// Many loads go at once: this should end before the first lane sums come.
template <bool Norm, int Rows>
__device__ __forceinline__ void ring_float_row(const RingBlock& b, const Projection& p, int r,
                                               int i, int lane, float (&sum)[Rows]) {
  const int cols = p.floats.cols;
  const float *w = p.floats.w + static_cast<size_t>(r) * cols,
              *x = p.floats.x + static_cast<size_t>(i) * cols;
  const bool norm = Norm && p.norm.x;
  float factor[Rows];
#pragma unroll
  for (int y = 0; y < Rows; ++y)
    factor[y] = norm ? b.bars->factors[i + y] : 1.0f, sum[y] = 0.0f;  // times one changes no bit
  int k = lane;
  auto some = [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    float a[kCount], c[Rows][kCount], n[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      a[j] = w[k + 32 * j], n[j] = norm ? p.norm.w[k + 32 * j] : 1.0f;
#pragma unroll
      for (int y = 0; y < Rows; ++y) c[y][j] = x[y * cols + k + 32 * j];
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j)
#pragma unroll
      for (int y = 0; y < Rows; ++y)
        sum[y] = arith::fma32(a[j], Norm ? c[y][j] * factor[y] * n[j] : c[y][j], sum[y]);
    k += 32 * kCount;
  };
#pragma unroll 1
  while (k - lane + 32 * 32 <= cols) some(std::integral_constant<int, 32>());
#pragma unroll 1
  while (k < cols) some(std::integral_constant<int, 1>());
#pragma unroll
  for (int y = 0; y < Rows; ++y) sum[y] = warp_tree(sum[y]);
}

// reducer: 0 .. kReducers-1, a warp. What the results are added to must be there.
template <int R, Form F>
__device__ __forceinline__ void ring_reduce(const RingBlock& b, const RingPlan& plan,
                                            const Projection& p, int reducer) {
  const Output& out = p.out;
  const int lane = threadIdx.x % 32;
  // With many rows two at a time, so that all tasks are one round.
  constexpr int kRows = kBehindNorm<R> && F == Form::kMany ? 2 : 1;
  const int pairs = ceil_div(out.m, kRows);
  // A block's reducers have neighbouring rows and the same activations.
  const int threes = ceil_div(p.floats.rows, kReducers);
#pragma unroll 1
  for (int task = blockIdx.x; task < threes * pairs; task += gridDim.x) {
    // The last two overlap where m is odd: both give the same bits.
    const int r = task % threes * kReducers + reducer,
              i = min(task / threes * kRows, out.m - kRows);
    if (r >= p.floats.rows) continue;
    float sum[kRows];
    ring_float_row<kTakesNorm<R, F>>(b, p, r, i, lane, sum);
#pragma unroll
    for (int y = 0; y < kRows; ++y)
      if (lane == 0) p.floats.y[static_cast<size_t>(i + y) * out.ld + r] = sum[y];
  }

  using Sum = TileSum<F>;
  constexpr int kOwnedMost = owned_tiles(R);
  const int owned = (R - b.rank + 1) / 2;
  uint32_t passes = 0;
#pragma unroll 1
  for (int slab = b.first; passes < static_cast<uint32_t>(b.slabs); slab += b.step, ++passes) {
    Sum* inbox = reinterpret_cast<Sum*>(b.shared + plan.exchange +
                                        static_cast<int>(passes % 2) * plan.inbox);
    uint64_t* arrived = &b.bars->exchange[passes % 2];
    Sum before[kOwned];  // asked for early: under the stream of weights a load takes long
#pragma unroll
    for (int j = 0; j < kOwned; ++j)
      if (const int i = reducer + j * kReducers; i < owned)
        before[j] = out.load<Sum>(slab * R + i * 2 + b.rank, lane);
    if (reducer == 0 && lane == 0)
      barrier_expect(arrived, static_cast<uint32_t>(owned * 32 * sizeof(Sum)));
    barrier_wait(&b.bars->sums, passes % 2);
    ring_add_lanes<R, F>(b, plan, reducer, [&](int tile, Sum v) {
      Sum* place = inbox + (b.rank * kOwnedMost + tile / 2) * 32 + lane;
      if (tile % 2 == b.rank) *place = v;
      else send(place, arrived, 1 - b.rank, v);
    });
    barrier_arrive(&b.bars->taken);
    named_barrier<1, kReducers * 32>();  // this block's own sums
    barrier_wait_cluster(arrived, passes / 2 % 2);
#pragma unroll
    for (int j = 0; j < kOwned; ++j)
      if (const int i = reducer + j * kReducers; i < owned)
        out.store(slab * R + i * 2 + b.rank, lane, tree<2>(inbox + i * 32 + lane, kOwnedMost * 32),
                  before[j]);
    named_barrier<1, kReducers * 32>();  // read before the next sums invite the next but one
  }
}
#endif

}  // namespace vcuda::gpu
