// The reducers of gates and ups (q4_layout.cuh): units of four tiles become silu(gate) * up, and
// the same quantized, in the block that owns the unit, so that no kernel lies between this
// projection and the next one.
#pragma once

#include "arith/activations.h"
#include "kernels/ring.cuh"

namespace vcuda::gpu {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

// A unit's gates and ups, of the four inputs 4 k .. of the group and one row of activations.
__device__ __forceinline__ void gated_quad(const Projection& p, int unit, int row, int k,
                                           float4 gate, float4 up, bool few) {
  const Output& out = p.out;
  const int half = out.rows / 2, at = unit * arith::kGroup + 4 * k;
  const bool here = row < out.m;
  if (out.y && here) {
    float* y = out.y + static_cast<size_t>(row) * out.ld + at;
    *reinterpret_cast<float4*>(y) = gate, *reinterpret_cast<float4*>(y + half) = up;
  }
  if (!p.gated.act) return;
  const float4 x = make_float4(arith::silu32(gate.x) * up.x, arith::silu32(gate.y) * up.y,
                               arith::silu32(gate.z) * up.z, arith::silu32(gate.w) * up.w);
  const QuantizedQuad<4> quad(x);
  if (!here) return;
  *reinterpret_cast<float4*>(p.gated.x + static_cast<size_t>(row) * half + at) = x;
  uint8_t* group = p.gated.act + static_cast<size_t>(unit) * act_stride(out.m);
  if (few) quad.write<true>(group, out.m, row, k);
  else quad.write<false>(group, out.m, row, k);
}

// A warp; the tiles' sums as TileSum has them.
__device__ __forceinline__ void gated_unit(const Projection& p, int unit, int lane,
                                           const float2 (&t)[4]) {
  gated_quad(p, unit, lane % 4, lane / 4, make_float4(t[0].x, t[0].y, t[1].x, t[1].y),
             make_float4(t[2].x, t[2].y, t[3].x, t[3].y), true);
}
__device__ __forceinline__ void gated_unit(const Projection& p, int unit, int lane,
                                           const float4 (&t)[4]) {
  const int row = lane % 4 * 2;
  gated_quad(p, unit, row, lane / 4, make_float4(t[0].x, t[0].z, t[1].x, t[1].z),
             make_float4(t[2].x, t[2].z, t[3].x, t[3].z), false);
  gated_quad(p, unit, row + 1, lane / 4, make_float4(t[0].y, t[0].w, t[1].y, t[1].w),
             make_float4(t[2].y, t[2].w, t[3].y, t[3].w), false);
}

// One tile of a shared unit: whoever brings the fourth makes the unit. i: among the shared tiles.
template <class Sum>
__device__ __forceinline__ void gated_shared(const Projection& p, int i, int unit, int lane,
                                             Sum sum) {
  auto place = [&](int tile) { return reinterpret_cast<Sum*>(p.gated.sums + tile * 32) + lane; };
  int* arrived = p.gated.arrived + i / 4;
  __stcg(place(i), sum);
  __threadfence();
  __syncwarp();
  int before = 0;
  if (lane == 0) before = atomicAdd(arrived, 1);
  if (__shfl_sync(kFull, before, 0) != 3) return;
  __threadfence();
  Sum t[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) t[j] = __ldcg(place(i / 4 * 4 + j));
  if (lane == 0) *arrived = 0;
  gated_unit(p, unit, lane, t);
}

// As ring_reduce. Units belong to the blocks in turn, shared tiles to the first.
template <int R, Form F>
__device__ __forceinline__ void ring_gate(const RingBlock& b, const RingPlan& plan,
                                          const Projection& p, int reducer) {
  static_assert(R >= 4 && kReducers >= 3, "a unit lies in two slabs at most; a shared tile a warp");
  using Sum = TileSum<F>;
  const int lane = threadIdx.x % 32, units = p.q.rows / (2 * arith::kGroup);
  const GatedCluster own(b.first, b.step, plan.slabs_each, plan.slabs_more, R);
  Sum* kept = reinterpret_cast<Sum*>(b.shared + plan.kept) + lane;
  auto exists = [&](int i) { return own.tile(i) < 4 * units; };
  auto ours = [&](int i) { return (i < own.spare ? 0 : (i - own.spare) / 4 % 2) == b.rank; };
#pragma unroll 1
  for (int pass = 0; pass < b.slabs; ++pass) {
    const int first = pass * R, parity = pass % 2;  // tiles of the cluster before this slab's
    Sum* inbox = reinterpret_cast<Sum*>(b.shared + plan.exchange + parity * plan.inbox) + lane;
    uint64_t* arrived = &b.bars->exchange[parity];
    if (reducer == 0) {
      const int i = first + lane,
                count = __popc(__ballot_sync(kFull, lane < R && exists(i) && ours(i)));
      if (lane == 0) barrier_expect(arrived, static_cast<uint32_t>(count * 32 * sizeof(Sum)));
    }
    barrier_wait(&b.bars->sums, static_cast<uint32_t>(parity));
    ring_add_lanes<R, F>(b, plan, reducer, [&](int i, Sum v) {
      if (!exists(first + i)) return;
      Sum* place = inbox + (b.rank * R + i) * 32;
      if (ours(first + i)) *place = v;
      else send(place, arrived, 1 - b.rank, v);
    });
    barrier_arrive(&b.bars->taken);
    named_barrier<1, kReducers * 32>();  // this block's own sums
    barrier_wait_cluster(arrived, static_cast<uint32_t>(pass) / 2 % 2);

    auto sum = [&](int i) { return tree<2>(inbox + (i - first) * 32, R * 32); };
    if (pass == 0 && b.rank == 0 && reducer < own.spare && exists(reducer)) {
      const int tile = own.tile(reducer);
      gated_shared(p, tile - 4 * own.shared, tile / 4, lane, sum(reducer));
    }
    int unit = max(first - own.spare, 0) / 4;
    unit += ((unit ^ b.rank) & 1) + 2 * reducer;
#pragma unroll 1
    for (; own.first + unit < units; unit += 2 * kReducers) {
      const int at = own.spare + 4 * unit;  // its first tile
      if (at >= first + R) break;
      Sum t[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = at + j;
        t[j] = i < first ? kept[((1 - parity) * 4 + j) * 32] : sum(min(i, first + R - 1));
        if (at + 4 > first + R) kept[(parity * 4 + j) * 32] = t[j];
      }
      if (at + 4 <= first + R) gated_unit(p, own.first + unit, lane, t);
    }
    named_barrier<1, kReducers * 32>();  // read before the next sums invite the next but one
  }
}
#endif

}  // namespace vcuda::gpu
