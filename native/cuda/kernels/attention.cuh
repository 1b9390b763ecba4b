// Full attention of m rows: norm and rotary of queries and keys and the append; partial results of chunks or spans; their merge.
//
// Cache per layer, as on the CPU: keys [Hkv][chunks][D][64], values [Hkv][chunks*64][D]. Which work a block does follows from the
// position in device memory, so that a captured graph serves every position: few keys are split by chunk (each a partial
// result), many by span (16 chunks, merged in the block): the contract's order makes both the same bits.
#pragma once

#include <type_traits>

#include "arith/activations.h"
#include "arith/trig.h"
#include "kernels/act.cuh"

namespace vcuda::gpu {

struct AttentionArgs {
  float* in;  // [m, ld]: per query head D query, D gate | k | v
  const float *q_norm, *k_norm, *inv_freq;
  float *keys, *values;
  size_t head_floats;  // keys (or values) of one head
  float* partial;      // [Hkv][m * r][units][D + 2]: o, maximum, sum
  int units;           // room in partial
  float* out;          // [m, Hq*D]
  uint8_t* act;
  int m, ld, q_heads, kv_heads, d, half, context;
  float eps, scale;

  __host__ __device__ int per_kv() const { return q_heads / kv_heads; }
  __host__ __device__ int ld_out() const { return q_heads * d; }
};

constexpr int kMostChunkUnits = 128;  // more chunks than this are worked on by span

// A unit is a chunk or a span; row i sees position + i + 1 keys.
struct AttentionWork {
  int chunks, per_unit, units;  // of the last row
  __host__ __device__ AttentionWork(int visible) {
    chunks = (visible + arith::kChunk - 1) / arith::kChunk;
    per_unit = chunks <= kMostChunkUnits ? 1 : arith::kSpanChunks;
    units = (chunks + per_unit - 1) / per_unit;
  }
};

inline int attention_units(int context) {
  const int chunks = ceil_div(context, arith::kChunk), spans = ceil_div(chunks, arith::kSpanChunks);
  return chunks < kMostChunkUnits ? chunks : spans > kMostChunkUnits ? spans : kMostChunkUnits;
}

// A warp a head of a row; held: D floats of shared memory.
__device__ __forceinline__ void attention_prepare(const AttentionArgs& a, const StepParams* step, int h, int row, int lane, float* held) {
  const int d = a.d;
  const bool is_q = h < a.q_heads;
  const int kv = h - a.q_heads, position = step->position + row;
  float* x = a.in + static_cast<size_t>(row) * a.ld + (is_q ? h * 2 * d : a.q_heads * 2 * d + kv * d);
  const float* w = is_q ? a.q_norm : a.k_norm;
  float sum = 0.0f;
  for (int n = lane; n < d; n += 32) {
    const float v = x[n];
    held[n] = v;
    sum = arith::fma32(v, v, sum);
  }
  const float r = arith::div32(1.0f, arith::sqrt32(arith::div32(warp_tree(sum), static_cast<float>(d)) + a.eps));
  for (int n = lane; n < d; n += 32) held[n] = held[n] * r * w[n];
  __syncwarp();
  for (int j = lane; j < a.half; j += 32) {
    double s, c;
    arith::sincos64(static_cast<double>(position) * static_cast<double>(a.inv_freq[j]), s, c);
    const float sine = static_cast<float>(s), cosine = static_cast<float>(c), lo = held[j], hi = held[j + a.half];
    held[j] = arith::fma32(lo, cosine, -(hi * sine));
    held[j + a.half] = arith::fma32(hi, cosine, lo * sine);
  }
  __syncwarp();
  if (is_q) {
    for (int n = lane; n < d; n += 32) x[n] = held[n];
    return;
  }
  const float* v = x + a.kv_heads * d;
  float* key = a.keys + kv * a.head_floats + static_cast<size_t>(position / arith::kChunk) * d * arith::kChunk + position % arith::kChunk;
  float* value = a.values + kv * a.head_floats + static_cast<size_t>(position) * d;
  for (int n = lane; n < d; n += 32) {
    key[static_cast<size_t>(n) * arith::kChunk] = held[n];
    value[n] = v[n];
  }
}

// grid: (ceil((Hq + Hkv) / 4), m), 128 threads
static __global__ void __launch_bounds__(128) kernel_attention_prepare(AttentionArgs a, const StepParams* step) {
  __shared__ float heads[4][512];
  wait_for_predecessor();
  const int warp = threadIdx.x / 32, h = blockIdx.x * 4 + warp;
  if (h < a.q_heads + a.kv_heads) attention_prepare(a, step, h, blockIdx.y, threadIdx.x % 32, heads[warp]);
}

// Factors of a merge of (mx, s) with a later (mx', s').
struct Merge {
  float mx, before, after;
  __device__ __forceinline__ Merge(float a, float b) {
    mx = a > b ? a : b;
    before = arith::exp32(a - mx);
    after = arith::exp32(b - mx);
  }
};

// 16 bytes into shared memory without a register; finished by copies_wait.
__device__ __forceinline__ void copy_async(float* to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void copies_wait() {  // all but the newest N groups
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

constexpr int kAttentionWarps = 8;

// Shared memory of a block: queries [warps * Q][D], weights [warps * Q][64]; staged: keys [D][64] and values [64][D] of a chunk.
inline size_t attention_shared_bytes(int q, int d, bool staged) {
  return sizeof(float) * static_cast<size_t>(kAttentionWarps * q * (d + arith::kChunk) + (staged ? 2 * d * arith::kChunk : 0));
}

// One unit for the queries [first, first + Q * warps) of a key head: warp w has Q of them, lane has the keys lane and lane + 32, then
// the dimensions lane*V ... Staged: while a chunk's values are summed, the next chunk's keys are on their way, and so on.
template <int Q, int V, bool Staged>
__device__ __forceinline__ void attend_unit(const AttentionArgs& a, int position, const AttentionWork& work, int kv, int unit, int first,
                                            const float* queries, float* weights, float* staged_keys, float* staged_values) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = a.d, r = a.per_kv(), most = a.m * r;
  const int query0 = first + warp * Q, n0 = lane * V;
  const bool active = query0 < most;
  const float* q = queries + static_cast<size_t>(warp) * Q * d;
  float* e = weights + warp * Q * arith::kChunk;
  int visible[Q];
#pragma unroll
  for (int i = 0; i < Q; ++i) visible[i] = position + min(query0 + i, most - 1) / r + 1;
  float total[Q][V], total_mx[Q], total_s[Q];
  const int begin = unit * work.per_unit, end = min(begin + work.per_unit, work.chunks);
  const float* head_keys = a.keys + kv * a.head_floats;
  const float* head_values = a.values + kv * a.head_floats;
  auto stage = [&](float* to, const float* from, int c) {
    if (c < end)
      for (int i = threadIdx.x * 4; i < d * arith::kChunk; i += kAttentionWarps * 128) copy_async(to + i, from + static_cast<size_t>(c) * d * arith::kChunk + i);
    copies_commit();
  };
  if constexpr (Staged) {
    stage(staged_keys, head_keys, begin);
    stage(staged_values, head_values, begin);
  }
  for (int c = begin; c < end; ++c) {
    const float* keys = Staged ? staged_keys : head_keys + static_cast<size_t>(c) * d * arith::kChunk;
    const float* values = (Staged ? staged_values : head_values + static_cast<size_t>(c) * arith::kChunk * d) + n0;
    if constexpr (Staged) {
      copies_wait<1>();
      __syncthreads();  // keys are here
    }
    float mx[Q], s[Q];
    int count[Q];
    bool whole = true;
#pragma unroll
    for (int i = 0; i < Q; ++i) {
      count[i] = min(visible[i] - c * arith::kChunk, arith::kChunk);  // 0 or less: this row does not reach the chunk
      whole = whole && count[i] == arith::kChunk;
    }
    if (active) {
      float score[Q][2];
      float lanes[Q][2][arith::kScoreLanes];
#pragma unroll
      for (int i = 0; i < Q; ++i)
#pragma unroll
        for (int l = 0; l < arith::kScoreLanes; ++l) lanes[i][0][l] = lanes[i][1][l] = 0.0f;
#pragma unroll 4
      for (int n = 0; n < d; n += 4) {
        float k[4][2];
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          k[l][0] = keys[(n + l) * arith::kChunk + lane];
          k[l][1] = keys[(n + l) * arith::kChunk + lane + 32];
        }
#pragma unroll
        for (int i = 0; i < Q; ++i) {
          const float4 x = *reinterpret_cast<const float4*>(q + i * d + n);
#pragma unroll
          for (int t = 0; t < 2; ++t) {
            lanes[i][t][0] = arith::fma32(x.x, k[0][t], lanes[i][t][0]);
            lanes[i][t][1] = arith::fma32(x.y, k[1][t], lanes[i][t][1]);
            lanes[i][t][2] = arith::fma32(x.z, k[2][t], lanes[i][t][2]);
            lanes[i][t][3] = arith::fma32(x.w, k[3][t], lanes[i][t][3]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < Q; ++i)
#pragma unroll
        for (int t = 0; t < 2; ++t) score[i][t] = ((lanes[i][t][0] + lanes[i][t][1]) + (lanes[i][t][2] + lanes[i][t][3])) * a.scale;
#pragma unroll
      for (int i = 0; i < Q; ++i) {
        const bool first_in = lane < count[i], second_in = lane + 32 < count[i];
        float best = second_in && score[i][1] > score[i][0] ? score[i][1] : score[i][0];
        if (!first_in) best = __uint_as_float(0xff800000u);
#pragma unroll
        for (int n = 1; n < 32; n *= 2) {
          const float other = __shfl_xor_sync(kFull, best, n);
          best = other > best ? other : best;
        }
        mx[i] = best;
        const float e0 = first_in ? arith::exp32(score[i][0] - best) : 0.0f, e1 = second_in ? arith::exp32(score[i][1] - best) : 0.0f;
        e[i * arith::kChunk + lane] = e0;
        e[i * arith::kChunk + lane + 32] = e1;
        float fold = 0.0f + e0;
        if (second_in) fold += e1;
        s[i] = warp_tree(fold);
      }
      __syncwarp();
    }
    if constexpr (Staged) {
      __syncthreads();  // every warp has read the keys
      stage(staged_keys, head_keys, c + 1);
      copies_wait<1>();
      __syncthreads();  // values are here
    }
    if (active) {
      float o[Q][V];
#pragma unroll
      for (int i = 0; i < Q; ++i)
#pragma unroll
        for (int n = 0; n < V; ++n) o[i][n] = 0.0f;
      auto add_key = [&](int t, auto all) {
        float v[V];
        if constexpr (V % 4 == 0) {
#pragma unroll
          for (int n = 0; n < V; n += 4) *reinterpret_cast<float4*>(v + n) = *reinterpret_cast<const float4*>(values + static_cast<size_t>(t) * d + n);
        } else {
#pragma unroll
          for (int n = 0; n < V; ++n) v[n] = values[static_cast<size_t>(t) * d + n];
        }
#pragma unroll
        for (int i = 0; i < Q; ++i) {
          const float f = e[i * arith::kChunk + t];
          if (decltype(all)::value || t < count[i]) {
#pragma unroll
            for (int n = 0; n < V; ++n) o[i][n] = arith::fma32(f, v[n], o[i][n]);
          }
        }
      };
      if (n0 < d) {
        if (whole) {
#pragma unroll 4
          for (int t = 0; t < arith::kChunk; ++t) add_key(t, std::true_type{});
        } else {
          const int last = count[Q - 1];  // later queries see more
#pragma unroll 2
          for (int t = 0; t < last; ++t) add_key(t, std::false_type{});
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < Q; ++i) {
        if (c == begin) {
          total_mx[i] = mx[i], total_s[i] = s[i];
#pragma unroll
          for (int n = 0; n < V; ++n) total[i][n] = o[i][n];
        } else if (count[i] > 0) {
          const Merge f(total_mx[i], mx[i]);
          total_mx[i] = f.mx;
          total_s[i] = arith::fma32(s[i], f.after, total_s[i] * f.before);
#pragma unroll
          for (int n = 0; n < V; ++n) total[i][n] = arith::fma32(o[i][n], f.after, total[i][n] * f.before);
        }
      }
    }
    if constexpr (Staged) {
      __syncthreads();  // every warp has read the values
      stage(staged_values, head_values, c + 1);
    }
  }
  if constexpr (Staged) copies_wait<0>();
  if (!active) return;
#pragma unroll
  for (int i = 0; i < Q; ++i) {
    if (query0 + i >= most || visible[i] <= begin * arith::kChunk) continue;
    float* to = a.partial + ((static_cast<size_t>(kv) * most + query0 + i) * a.units + unit) * (d + 2);
    if (n0 < d)
#pragma unroll
      for (int n = 0; n < V; ++n) to[n0 + n] = total[i][n];
    if (lane == 0) to[d] = total_mx[i], to[d + 1] = total_s[i];
  }
}

// 256 threads of a block take their share of the tasks.
template <int Q, int V, bool Staged, class Sync>
__device__ __forceinline__ void attend(const AttentionArgs& a, int position, const AttentionWork& work, float* shared, Sync sync) {
  float* queries = shared;
  float* weights = queries + kAttentionWarps * Q * a.d;
  float* keys = weights + kAttentionWarps * Q * arith::kChunk;
  const int most = a.m * a.per_kv(), r = a.per_kv();
  const int groups = ceil_div(most, kAttentionWarps * Q), total = a.kv_heads * work.units * groups;
  for (int task = blockIdx.x; task < total; task += gridDim.x) {
    const int group = task % groups, unit = task / groups % work.units, kv = task / groups / work.units, first = group * kAttentionWarps * Q;
    sync();  // the task before has read its queries
    for (int i = threadIdx.x; i < kAttentionWarps * Q * a.d; i += kAttentionWarps * 32) {
      const int query = min(first + i / a.d, most - 1), n = i % a.d;
      queries[i] = a.in[static_cast<size_t>(query / r) * a.ld + (static_cast<size_t>(kv) * r + query % r) * 2 * a.d + n];
    }
    sync();
    attend_unit<Q, V, Staged>(a, position, work, kv, unit, first, queries, weights, keys, keys + a.d * arith::kChunk);
  }
}

// grid: any number of blocks. Few keys: Q queries a warp; many: Many, where the arithmetic is the limit and not the number of blocks.
template <int Q, int Many, int V, bool Staged>
static __global__ void __launch_bounds__(kAttentionWarps * 32) kernel_attention(AttentionArgs a, const StepParams* step) {
  extern __shared__ __align__(16) float attention_shared[];
  wait_for_predecessor();
  const AttentionWork work(step->position + a.m);
  if (Q != Many && work.per_unit > 1) attend<Many, V, Staged>(a, step->position, work, attention_shared, [] { __syncthreads(); });
  else attend<Q, V, Staged>(a, step->position, work, attention_shared, [] { __syncthreads(); });
}

// Thread n has dimension n of one head of a row; whole warps. Merges, divides, gates, quantizes.
__device__ __forceinline__ void attention_merge(const AttentionArgs& a, const StepParams* step, int head, int row, int n) {
  const int lane = n % 32, r = a.per_kv(), kv = head / r, d = a.d;
  const int visible = step->position + row + 1;
  const AttentionWork work(step->position + a.m);
  const int per_unit_keys = work.per_unit * arith::kChunk, units = (visible + per_unit_keys - 1) / per_unit_keys;
  const int per_span = arith::kSpanChunks / work.per_unit;
  const float* from = a.partial + (static_cast<size_t>(kv) * a.m * r + row * r + head % r) * a.units * (d + 2);
  const bool real = n < d;
  float total = 0.0f, total_mx = 0.0f, total_s = 1.0f;
  for (int unit = 0; unit < units;) {
    const int end = min(unit + per_span, units), first = unit;
    const float* p = from + static_cast<size_t>(unit) * (d + 2);
    float o = real ? p[n] : 0.0f, mx = p[d], s = p[d + 1];
    for (++unit; unit < end; ++unit) {
      p = from + static_cast<size_t>(unit) * (d + 2);
      const float next = real ? p[n] : 0.0f;
      const Merge f(mx, p[d]);
      mx = f.mx;
      s = arith::fma32(p[d + 1], f.after, s * f.before);
      o = arith::fma32(next, f.after, o * f.before);
    }
    if (first == 0) {
      total = o, total_mx = mx, total_s = s;
    } else {
      const Merge f(total_mx, mx);
      total_mx = f.mx;
      total_s = arith::fma32(s, f.after, total_s * f.before);
      total = arith::fma32(o, f.after, total * f.before);
    }
  }
  float v = 0.0f;
  if (real) {
    const float gate = a.in[static_cast<size_t>(row) * a.ld + static_cast<size_t>(head) * 2 * d + d + n];
    v = arith::div32(total, total_s) * arith::sigmoid32(gate);
    a.out[static_cast<size_t>(row) * a.ld_out() + head * d + n] = v;
  }
  if (d % 32 == 0) quantize_group(v, lane, a.act, a.ld_out() / arith::kGroup, (head * d + n) / arith::kGroup, row, a.m);
}

// grid: (Hq, m), threads: D rounded up to 32
static __global__ void __launch_bounds__(512) kernel_attention_merge(AttentionArgs a, const StepParams* step) {
  wait_for_predecessor();
  attention_merge(a, step, blockIdx.x, blockIdx.y, threadIdx.x);
}

}  // namespace vcuda::gpu
