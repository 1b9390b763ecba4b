// The end of attention: partial results of one query over all chunks and spans, the division, the
// gate, and the quantized row.
#pragma once

#include "arith/activations.h"
#include "kernels/attention_run.cuh"

namespace vcuda::gpu {

constexpr int kPartSpans = 8;  // of a round

// A running (o, maximum, sum): one dimension.
struct Partial {
  float o = 0.0f, mx = 0.0f, s = 0.0f;
  bool empty = true;

  // The next `count` partial results in order; lane i of the warp brings the maximum and sum of the
  // i-th, every thread its value(i). The factors of all are found at once: they depend on the
  // running maximum alone.
  template <int Most, class Value>
  __device__ __forceinline__ void add(int count, int lane, float next_mx, float next_s,
                                      Value value) {
    float top = lane < count ? next_mx : __int_as_float(static_cast<int>(0xff800000u));
#pragma unroll
    for (int n = 1; n < 32; n *= 2) {
      const float other = __shfl_up_sync(kFull, top, n);
      if (lane >= n && other > top) top = other;
    }
    if (!empty && mx > top) top = mx;
    float before_top = __shfl_up_sync(kFull, top, 1);
    if (lane == 0) before_top = mx;
    const float before = arith::exp32(before_top - top), after = arith::exp32(next_mx - top);
#pragma unroll
    for (int i = 0; i < Most; ++i) {
      if (i >= count) break;
      const float f = __shfl_sync(kFull, before, i), g = __shfl_sync(kFull, after, i),
                  sum = __shfl_sync(kFull, next_s, i), x = value(i);
      s = empty ? sum : arith::fma32(sum, g, s * f);
      o = empty ? x : arith::fma32(x, g, o * f);
      empty = false;
    }
    mx = __shfl_sync(kFull, top, count - 1);
  }
};

// Units of (key head, group) `head` are counted; a pass waits for all of them and is counted then.
__device__ __forceinline__ void count_unit(unsigned* done) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(done) : "memory");
}
__device__ __forceinline__ void wait_for_units(unsigned* done, int units, int passes) {
  unsigned seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(done) : "memory");
  } while (seen < static_cast<unsigned>(units));
  // The last pass leaves the counter as it was.
  if (atomicAdd(done, 1u) == static_cast<unsigned>(units + passes - 1)) *done = 0;
}

// Pass `task`: items of one (key head, group).
template <class Sync, class Ready>
__device__ __forceinline__ void attention_merge(int memory_at, int task, Sync sync, Ready ready) {
  AttentionShared& shared = attention_shared(memory_at);
  const AttentionArgs& a = shared.args;
  const AttentionSplit& s = shared.split;
  const MergePlan& plan = shared.plan;
  const int t = threadIdx.x, position = shared.position, head = task / plan.passes,
            pass = task % plan.passes;
  constexpr int kStage = kItemDims + 2;
  const int q_tile = tile_queries(s.tile), r = a.per_kv, d = a.d, pitch = partial_pitch(d);
  const int sub = t / kItemDims, part = sub % plan.share, per_pass = kItemParts / plan.share;
  const int item = pass * per_pass + sub / plan.share, q = item / plan.slices,
            n = item % plan.slices * kItemDims + t % kItemDims,
            query = head % s.groups * q_tile + q;
  const bool exists = q < q_tile && query < a.queries(), real = exists && n < d;
  const int row = query / r, q_head = head / s.groups * r + query % r;
  float* stage = reinterpret_cast<float*>(&shared) + kSharedFloats +
                 sub / plan.share * plan.share * kPartSpans * kStage + t % kItemDims;
  ready();
  const float gate =
      real && part == 0 ? a.in[static_cast<size_t>(row) * a.ld + q_head * 2 * d + d + n] : 0.0f;
  const int chunks = exists ? ceil_div(position + row + 1, arith::kChunk) : 0,
            spans = ceil_div(chunks, arith::kSpanChunks),
            all_spans = ceil_div(s.chunks, arith::kSpanChunks);
  const float* from = a.partial + (static_cast<size_t>(head) * s.slots() * q_tile + q) * pitch;
  auto place = [&](int slot) { return from + static_cast<size_t>(slot) * q_tile * pitch; };
  if (t == 0) wait_for_units(a.counters + 1 + head, s.units(), plan.passes);
  sync();

  // Of a round of spans the results go through shared memory: [spans][64] and maxima and sums.
  Partial total;
  const int lane = t % 32, round = kPartSpans * plan.share;
#pragma unroll 1
  for (int base = 0; base < all_spans; base += round) {
    const int end = min(spans, base + round);
    float x[arith::kSpanChunks] = {};
    static_assert(kPartSpans <= arith::kSpanChunks, "one array for both");
    if (base + part < min(end, s.whole)) {
#pragma unroll
      for (int i = 0; i < kPartSpans; ++i) {
        const int span = base + part + plan.share * i;
        if (real && span < min(end, s.whole)) x[i] = __ldcg(place(span) + n);
      }
#pragma unroll
      for (int i = 0; i < kPartSpans; ++i) {
        const int span = base + part + plan.share * i;
        if (span >= min(end, s.whole)) break;
        float* to = stage + (span - base) * kStage;
        to[0] = x[i];
        if (t % kItemDims < 2) to[kItemDims] = __ldcg(place(span) + d + t % kItemDims);
      }
    }
#pragma unroll 1
    for (int span = base + part; span < end; span += plan.share) {
      if (span < s.whole) continue;
      const int first = span * arith::kSpanChunks, count = min(chunks - first, arith::kSpanChunks);
      float2 rest = make_float2(0.0f, 0.0f);
      if (lane < count)
        rest = __ldcg(reinterpret_cast<const float2*>(place(s.slot(first + lane)) + d));
#pragma unroll
      for (int i = 0; i < arith::kSpanChunks; ++i)
        x[i] = real && i < count ? __ldcg(place(s.slot(first + i)) + n) : 0.0f;
      Partial p;
      p.add<arith::kSpanChunks>(count, lane, rest.x, rest.y, [&](int i) { return x[i]; });
      float* to = stage + (span - base) * kStage;
      to[0] = p.o;
      if (t % kItemDims == 0) to[kItemDims] = p.mx, to[kItemDims + 1] = p.s;
    }
    sync();
    if (part == 0 && base < end) {
      const float* p = stage + min(lane, end - base - 1) * kStage + kItemDims - t % kItemDims;
      total.add<kPartSpans * kItemParts>(end - base, lane, p[0], p[1],
                                         [&](int i) { return stage[i * kStage]; });
    }
    sync();
  }
  if (!exists || part != 0) return;
  float v = 0.0f;
  if (real) {
    v = arith::div32(total.o, total.s) * arith::sigmoid32(gate);
    a.out[static_cast<size_t>(a.row0 + row) * a.ld_out() + q_head * d + n] = v;
  }
  if (d % arith::kGroup == 0 && n - t % arith::kGroup < d)
    quantize_group(v, t % arith::kGroup, a.act, a.ld_out() / arith::kGroup,
                   (q_head * d + n) / arith::kGroup, a.row0 + row, a.m);
}

}  // namespace vcuda::gpu
