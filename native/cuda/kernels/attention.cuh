// The launches of full attention: norm and rotary of queries and keys and the append; partial
// results of chunks or spans (attention_run.cuh); their merge.
#pragma once

#include "arith/activations.h"
#include "arith/trig.h"
#include "kernels/act.cuh"
#include "kernels/attention_run.cuh"

namespace vcuda::gpu {

// A warp a head of a row; held: D floats of shared memory. ready: returns when the projection's
// rows are there; the first angles are found before.
template <class Ready>
__device__ __forceinline__ void attention_prepare(const AttentionArgs& a, const StepParams* step,
                                                  int h, int row, int lane, float* held,
                                                  Ready ready) {
  const int d = a.d;
  const bool is_q = h < a.q_heads;
  const int kv = h - a.q_heads, position = __ldcg(&step->position) + row;
  float* x =
      a.in + static_cast<size_t>(row) * a.ld + (is_q ? h * 2 * d : a.q_heads * 2 * d + kv * d);
  const float* w = is_q ? a.q_norm : a.k_norm;
  constexpr int kMost = 16;  // 512 dimensions; all loads are on their way before the first use
  float own[kMost], weight[kMost], other[kMost], sine = 0.0f, cosine = 0.0f;
  auto turn = [&](int j) {
    double s, c;
    arith::sincos64(static_cast<double>(position) * static_cast<double>(a.inv_freq[j]), s, c);
    sine = static_cast<float>(s), cosine = static_cast<float>(c);
  };
#pragma unroll
  for (int j = 0; j < kMost; ++j) weight[j] = lane + 32 * j < d ? w[lane + 32 * j] : 0.0f;
  if (lane < a.half) turn(lane);
  ready();
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    const int n = lane + 32 * j;
    own[j] = n < d ? x[n] : 0.0f;
    other[j] = n < d && !is_q ? x[a.kv_heads * d + n] : 0.0f;  // the value beside a key
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kMost; ++j)
    if (lane + 32 * j < d) sum = arith::fma32(own[j], own[j], sum);
  const float r = arith::div32(
      1.0f, arith::sqrt32(arith::div32(warp_tree(sum), static_cast<float>(d)) + a.eps));
#pragma unroll
  for (int j = 0; j < kMost; ++j)
    if (lane + 32 * j < d) held[lane + 32 * j] = own[j] * r * weight[j];
  __syncwarp();
  for (int j = lane; j < a.half; j += 32) {
    if (j >= 32) turn(j);
    const float lo = held[j], hi = held[j + a.half];
    held[j] = arith::fma32(lo, cosine, -(hi * sine));
    held[j + a.half] = arith::fma32(hi, cosine, lo * sine);
  }
  __syncwarp();
  if (is_q) {
    for (int n = lane; n < d; n += 32) x[n] = held[n];
    return;
  }
  float* key = a.keys + kv * a.head_floats +
               static_cast<size_t>(position / arith::kChunk) * d * arith::kChunk +
               position % arith::kChunk;
  float* value = a.values + kv * a.head_floats + static_cast<size_t>(position) * d;
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    const int n = lane + 32 * j;
    if (n >= d) break;
    key[static_cast<size_t>(n) * arith::kChunk] = held[n];
    value[n] = other[j];
  }
}

// grid: (ceil((Hq + Hkv) / 4), m), 128 threads. The attention behind it reads the step's parameters
// and earlier steps' keys before its wait, so whatever wrote those must have ended by the time this
// kernel lets it start: behind a projection, which itself starts late enough, at once; else after
// this kernel's own wait.
static __global__ void __launch_bounds__(128)
    kernel_attention_prepare(AttentionArgs a, const StepParams* step) {
  __shared__ float heads[4][512];
  const int warp = threadIdx.x / 32, h = blockIdx.x * 4 + warp;
  if (a.behind_projection) let_go();
  else wait_for_predecessor();
  if (h < a.q_heads + a.kv_heads)
    attention_prepare(a, step, h, blockIdx.y, threadIdx.x % 32, heads[warp], [&] {
      if (a.behind_projection) wait_letting_go();
    });
  else if (a.behind_projection) wait_letting_go();
}

// A running (o, maximum, sum): one dimension, a thread.
struct RunningMerge {
  float o = 0.0f, mx = 0.0f, s = 0.0f;
  bool empty = true;

  // The next `count` partial results in order; lane i of the warp brings the maximum and sum of the
  // i-th, x the thread's dimension of each. The factors of all are found at once: they depend on
  // the running maximum alone.
  template <int Most>
  __device__ __forceinline__ void add(int count, int lane, float next_mx, float next_s,
                                      const float (&x)[Most]) {
    static_assert(Most <= 32, "a lane each");
    float top = lane < count ? next_mx : __int_as_float(static_cast<int>(0xff800000u));
#pragma unroll
    for (int n = 1; n < Most; n *= 2) {
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
                  sum = __shfl_sync(kFull, next_s, i);
      s = empty ? sum : arith::fma32(sum, g, s * f);
      o = empty ? x[i] : arith::fma32(x[i], g, o * f);
      empty = false;
    }
    mx = __shfl_sync(kFull, top, count - 1);
  }
  // One more, known to every lane.
  __device__ __forceinline__ void add(const RunningMerge& next) {
    if (empty) {
      *this = next;
      return;
    }
    const Merge f(mx, next.mx);
    mx = f.mx;
    s = arith::fma32(next.s, f.after, s * f.before);
    o = arith::fma32(next.o, f.after, o * f.before);
  }
};

// Thread n has dimension n of one head of a row; whole warps. Merges, divides, gates, quantizes.
template <class Ready>
__device__ __forceinline__ void attention_merge(const AttentionArgs& a, const StepParams* step,
                                                int head, int row, int n, Ready ready) {
  constexpr int kBatch = arith::kSpanChunks;
  const int lane = n % 32, r = a.per_kv(), kv = head / r, d = a.d, pitch = partial_pitch(d);
  const int position = __ldcg(&step->position);
  const AttentionUnits work(position + a.m);
  const int units = ceil_div(position + row + 1, work.chunks_of_unit() * arith::kChunk);
  const float* from =
      a.partial + (static_cast<size_t>(kv) * a.m * r + row * r + head % r) * a.units * pitch;
  const bool real = n < d;
  const float gate = real ? __ldcg(a.in + static_cast<size_t>(row) * a.ld +
                                   static_cast<size_t>(head) * 2 * d + d + n)
                          : 0.0f;
  ready();
  float o[kBatch];
  float2 rest;  // lane i: maximum and sum of the batch's i-th unit
  auto load = [&](int unit0) {
    const float* p = from + static_cast<size_t>(unit0) * pitch;
    const int last = units - 1 - unit0;
    rest = *reinterpret_cast<const float2*>(p + min(lane % kBatch, last) * pitch + d);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) o[i] = real ? p[min(i, last) * pitch + n] : 0.0f;
  };
  RunningMerge total;
  load(0);
#pragma unroll 1
  for (int unit0 = 0; unit0 < units; unit0 += kBatch) {
    float x[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) x[i] = o[i];
    const float2 now = rest;
    if (unit0 + kBatch < units) load(unit0 + kBatch);  // on its way meanwhile
    const int count = min(units - unit0, kBatch);
    if (work.spans) {
      total.add<kBatch>(count, lane, now.x, now.y, x);
    } else {
      RunningMerge span;
      span.add<kBatch>(count, lane, now.x, now.y, x);
      total.add(span);
    }
  }
  float v = 0.0f;
  if (real) {
    v = arith::div32(total.o, total.s) * arith::sigmoid32(gate);
    a.out[static_cast<size_t>(row) * a.ld_out() + head * d + n] = v;
  }
  if (d % 32 == 0)
    quantize_group(v, lane, a.act, a.ld_out() / arith::kGroup, (head * d + n) / arith::kGroup, row,
                   a.m);
}

// grid: (Hq, m), threads: D rounded up to 32. Starts when the projection in front of attention has
// ended (attend), so its gates may be read before the wait.
static __global__ void __launch_bounds__(512, 1)
    kernel_attention_merge(AttentionArgs a, const StepParams* step) {
  let_go();
  attention_merge(a, step, blockIdx.x, blockIdx.y, threadIdx.x, [] { wait_letting_go(); });
}

struct AttentionKernel {
  int many, v;  // D <= 256 * v
  void (*kernel)(AttentionArgs, const StepParams*);
};
static const AttentionKernel kAttentionKernels[] = {
    {8, 1, kernel_attention<8, 1>}, {4, 1, kernel_attention<4, 1>}, {2, 1, kernel_attention<2, 1>},
    {1, 1, kernel_attention<1, 1>}, {4, 2, kernel_attention<4, 2>}, {2, 2, kernel_attention<2, 2>},
    {1, 2, kernel_attention<1, 2>}};

// The smallest that has every query of a key head in one tile, or else the largest; null where
// `bytes` of shared memory are too few for any.
static const AttentionKernel* attention_kernel(int d, int queries, int bytes, AttentionRoom& room) {
  const AttentionKernel* best = nullptr;
  for (const AttentionKernel& k : kAttentionKernels) {
    if (k.v != ceil_div(d, 256) || (best && 6 * k.many < queries)) continue;
    if (attention_room(6 * k.many, k.v, d, bytes, room)) best = &k;
  }
  if (best) attention_room(6 * best->many, best->v, d, bytes, room);
  return best;
}

}  // namespace vcuda::gpu
