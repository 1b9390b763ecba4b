// Full attention of m rows: norm and rotary of queries and keys and the append; partial results of
// chunks or spans; their merge.
//
// Cache per layer, as on the CPU: keys [Hkv][chunks][D][64], values [Hkv][chunks*64][D]. Which work
// a block does follows from the position in device memory, so that a captured graph serves every
// position: few keys are split by chunk (each a partial result), many by span (16 chunks, merged in
// the block): the contract's order makes both the same bits.
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
__device__ __forceinline__ void attention_prepare(const AttentionArgs& a, const StepParams* step,
                                                  int h, int row, int lane, float* held) {
  const int d = a.d;
  const bool is_q = h < a.q_heads;
  const int kv = h - a.q_heads, position = step->position + row;
  float* x =
      a.in + static_cast<size_t>(row) * a.ld + (is_q ? h * 2 * d : a.q_heads * 2 * d + kv * d);
  const float* w = is_q ? a.q_norm : a.k_norm;
  constexpr int kMost = 16;  // 512 dimensions; all loads are on their way before the first use
  float own[kMost], weight[kMost], other[kMost];
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    const int n = lane + 32 * j;
    own[j] = n < d ? x[n] : 0.0f;
    weight[j] = n < d ? w[n] : 0.0f;
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
    double s, c;
    arith::sincos64(static_cast<double>(position) * static_cast<double>(a.inv_freq[j]), s, c);
    const float sine = static_cast<float>(s), cosine = static_cast<float>(c), lo = held[j],
                hi = held[j + a.half];
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

// grid: (ceil((Hq + Hkv) / 4), m), 128 threads
static __global__ void __launch_bounds__(128)
    kernel_attention_prepare(AttentionArgs a, const StepParams* step) {
  __shared__ float heads[4][512];
  wait_letting_go();
  const int warp = threadIdx.x / 32, h = blockIdx.x * 4 + warp;
  if (h < a.q_heads + a.kv_heads)
    attention_prepare(a, step, h, blockIdx.y, threadIdx.x % 32, heads[warp]);
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

constexpr int kAttentionThreads = 256;

// Shared memory of a block in floats: queries [Q][4][D/4 + 4] (the pad spreads the lanes over the
// banks), scores [64][Q + 4], and of each query maximum, sum, two factors and the keys it sees.
__host__ __device__ constexpr int attention_shared_floats(int q, int d) {
  return q * (d + 16) + arith::kChunk * (q + 4) + 5 * q;
}

// One unit for the queries [first, first + Q) of a key head; thread t of 256. Keys and values are
// read once. Scores: a thread has one key and one of the contract's lanes over D. Values: a thread
// has the dimensions t, t + 256, ... V of them.
template <int Q, int V, class Sync>
__device__ __forceinline__ void attend_unit(const AttentionArgs& a, int position,
                                            const AttentionWork& work, int kv, int unit, int first,
                                            int t, float* shared, Sync sync) {
  static_assert(arith::kScoreLanes == 4 && arith::kExpLanes == 32,
                "four threads a key, a warp a query");
  constexpr int kPitch = Q + 4;
  const int lane = t % 32, warp = t / 32, d = a.d, quarter = d / 4, pitch = quarter + 4,
            r = a.per_kv(), most = a.m * r;
  float* queries = shared;
  float* scores = queries + Q * 4 * pitch;
  float* maxima = scores + arith::kChunk * kPitch;
  float *sums = maxima + Q, *before = sums + Q, *after = before + Q;
  int* visible = reinterpret_cast<int*>(after + Q);
  auto count_of = [&](int q, int c) {
    return min(visible[q] - c * arith::kChunk, arith::kChunk);
  };  // keys of the chunk; 0 or less: none
  if (t < Q) visible[t] = position + min(first + t, most - 1) / r + 1;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int n = t + v * kAttentionThreads;
    if (n >= d) break;
    float x[Q];
    int row = first / r, head = first % r;
#pragma unroll
    for (int i = 0; i < Q; ++i) {
      x[i] =
          a.in[static_cast<size_t>(row) * a.ld + (static_cast<size_t>(kv) * r + head) * 2 * d + n];
      if (first + i + 1 < most && ++head == r) head = 0, ++row;
    }
#pragma unroll
    for (int i = 0; i < Q; ++i) queries[(i * 4 + n % 4) * pitch + n / 4] = x[i];
  }
  sync();

  float total[V][Q];
  const int begin = unit * work.per_unit, end = min(begin + work.per_unit, work.chunks);
  for (int c = begin; c < end; ++c) {
    {
      const int l = t % 4, key = t / 4;
      const float* keys =
          a.keys + kv * a.head_floats + (static_cast<size_t>(c) * d + l) * arith::kChunk + key;
      const float* q = queries + l * pitch;
      float sum[Q];
#pragma unroll
      for (int i = 0; i < Q; ++i) sum[i] = 0.0f;
      auto add = [&](int j0, auto batch) {
        constexpr int kBatch = decltype(batch)::value;
        float k[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
          k[j] = keys[static_cast<size_t>(j0 + j) * 4 * arith::kChunk];
#pragma unroll
        for (int i = 0; i < Q; ++i)
#pragma unroll
          for (int j = 0; j < kBatch; j += 4) {
            const float4 x = *reinterpret_cast<const float4*>(q + i * 4 * pitch + j0 + j);
            sum[i] = arith::fma32(x.x, k[j], sum[i]);
            sum[i] = arith::fma32(x.y, k[j + 1], sum[i]);
            sum[i] = arith::fma32(x.z, k[j + 2], sum[i]);
            sum[i] = arith::fma32(x.w, k[j + 3], sum[i]);
          }
      };
      int j = 0;
      for (; j + 32 <= quarter; j += 32) add(j, std::integral_constant<int, 32>{});
      for (; j < quarter; j += 4) add(j, std::integral_constant<int, 4>{});
#pragma unroll
      for (int i = 0; i < Q; ++i) {
        sum[i] += __shfl_xor_sync(kFull, sum[i], 1);
        sum[i] += __shfl_xor_sync(kFull, sum[i], 2);
        if (l == i % 4) scores[key * kPitch + i] = sum[i] * a.scale;
      }
    }
    sync();
    for (int i = warp; i < Q; i += kAttentionThreads / 32) {
      const int count = count_of(i, c);
      const bool first_in = lane < count, second_in = lane + 32 < count;
      const float s0 = scores[lane * kPitch + i], s1 = scores[(lane + 32) * kPitch + i];
      float best = second_in && s1 > s0 ? s1 : s0;
      if (!first_in) best = __uint_as_float(0xff800000u);
#pragma unroll
      for (int n = 1; n < 32; n *= 2) {
        const float other = __shfl_xor_sync(kFull, best, n);
        best = other > best ? other : best;
      }
      const float e0 = first_in ? arith::exp32(s0 - best) : 0.0f,
                  e1 = second_in ? arith::exp32(s1 - best) : 0.0f;
      scores[lane * kPitch + i] = e0;
      scores[(lane + 32) * kPitch + i] = e1;
      float fold = 0.0f + e0;
      if (second_in) fold += e1;
      const float sum = warp_tree(fold);
      if (lane == 0) {
        if (c == begin) {
          maxima[i] = best, sums[i] = sum;
        } else if (count > 0) {
          const Merge f(maxima[i], best);
          maxima[i] = f.mx;
          sums[i] = arith::fma32(sum, f.after, sums[i] * f.before);
          before[i] = f.before, after[i] = f.after;
        }
      }
    }
    sync();
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int n = t + v * kAttentionThreads;
      if (n >= d) break;
      const float* values =
          a.values + kv * a.head_floats + static_cast<size_t>(c) * arith::kChunk * d + n;
      float o[Q];
#pragma unroll
      for (int i = 0; i < Q; ++i) o[i] = 0.0f;
      if (count_of(0, c) == arith::kChunk) {  // later queries see no fewer
        constexpr int kBatch = 16;
        for (int k0 = 0; k0 < arith::kChunk; k0 += kBatch) {
          float x[kBatch];
#pragma unroll
          for (int k = 0; k < kBatch; ++k) x[k] = values[static_cast<size_t>(k0 + k) * d];
#pragma unroll
          for (int k = 0; k < kBatch; ++k)
#pragma unroll
            for (int i = 0; i < Q; i += 4) {
              const float4 e = *reinterpret_cast<const float4*>(scores + (k0 + k) * kPitch + i);
              o[i] = arith::fma32(e.x, x[k], o[i]);
              o[i + 1] = arith::fma32(e.y, x[k], o[i + 1]);
              o[i + 2] = arith::fma32(e.z, x[k], o[i + 2]);
              o[i + 3] = arith::fma32(e.w, x[k], o[i + 3]);
            }
        }
      } else {
        int count[Q];
#pragma unroll
        for (int i = 0; i < Q; ++i) count[i] = count_of(i, c);
#pragma unroll 8
        for (int k = 0; k < count[Q - 1]; ++k) {
          const float x = values[static_cast<size_t>(k) * d];
#pragma unroll
          for (int i = 0; i < Q; ++i)
            if (k < count[i]) o[i] = arith::fma32(scores[k * kPitch + i], x, o[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < Q; ++i) {
        if (c == begin) total[v][i] = o[i];
        else if (count_of(i, c) > 0)
          total[v][i] = arith::fma32(o[i], after[i], total[v][i] * before[i]);
      }
    }
    sync();  // the next chunk's scores may be written
  }
#pragma unroll
  for (int i = 0; i < Q; ++i) {
    if (first + i >= most || count_of(i, begin) <= 0) continue;
    float* to =
        a.partial + ((static_cast<size_t>(kv) * most + first + i) * a.units + unit) * (d + 2);
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (t + v * kAttentionThreads < d) to[t + v * kAttentionThreads] = total[v][i];
    if (t == 0) to[d] = maxima[i], to[d + 1] = sums[i];
  }
}

// 256 threads of a block take their share of the tasks.
template <int Q, int V, class Sync>
__device__ __forceinline__ void attend(const AttentionArgs& a, int position,
                                       const AttentionWork& work, int t, float* shared, Sync sync) {
  const int groups = ceil_div(a.m * a.per_kv(), Q), total = a.kv_heads * work.units * groups;
  for (int task = blockIdx.x; task < total; task += gridDim.x) {
    attend_unit<Q, V>(a, position, work, task / groups / work.units, task / groups % work.units,
                      task % groups * Q, t, shared, sync);
    sync();
  }
}

// grid: any number of blocks. Few keys: Q queries a block at a time; many: Many, where the
// arithmetic is the limit and not the number of blocks.
template <int Q, int Many, int V>
static __global__ void __launch_bounds__(kAttentionThreads, Many > 8 ? 1 : 2)
    kernel_attention(AttentionArgs a, const StepParams* step) {
  extern __shared__ __align__(16) float attention_shared[];
  wait_letting_go();
  const AttentionWork work(step->position + a.m);
  auto sync = [] { __syncthreads(); };
  if (Q != Many && work.per_unit > 1)
    attend<Many, V>(a, step->position, work, threadIdx.x, attention_shared, sync);
  else attend<Q, V>(a, step->position, work, threadIdx.x, attention_shared, sync);
}

// Thread n has dimension n of one head of a row; whole warps. Merges, divides, gates, quantizes.
__device__ __forceinline__ void attention_merge(const AttentionArgs& a, const StepParams* step,
                                                int head, int row, int n) {
  const int lane = n % 32, r = a.per_kv(), kv = head / r, d = a.d;
  const int visible = step->position + row + 1;
  const AttentionWork work(step->position + a.m);
  const int per_unit_keys = work.per_unit * arith::kChunk,
            units = (visible + per_unit_keys - 1) / per_unit_keys;
  const int per_span = arith::kSpanChunks / work.per_unit;
  const float* from =
      a.partial + (static_cast<size_t>(kv) * a.m * r + row * r + head % r) * a.units * (d + 2);
  const bool real = n < d;
  float total = 0.0f, total_mx = 0.0f, total_s = 1.0f;
  constexpr int kBatch = 8;
  float span_o = 0.0f, span_mx = 0.0f, span_s = 1.0f;
  for (int unit0 = 0; unit0 < units; unit0 += kBatch) {
    float o[kBatch], mx[kBatch], s[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float* p = from + static_cast<size_t>(min(unit0 + i, units - 1)) * (d + 2);
      o[i] = real ? p[n] : 0.0f, mx[i] = p[d], s[i] = p[d + 1];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = unit0 + i;
      if (unit >= units) break;
      if (unit % per_span == 0) {
        span_o = o[i], span_mx = mx[i], span_s = s[i];
      } else {
        const Merge f(span_mx, mx[i]);
        span_mx = f.mx;
        span_s = arith::fma32(s[i], f.after, span_s * f.before);
        span_o = arith::fma32(o[i], f.after, span_o * f.before);
      }
      if ((unit + 1) % per_span != 0 && unit + 1 < units) continue;
      if (unit < per_span) {
        total = span_o, total_mx = span_mx, total_s = span_s;
      } else {
        const Merge f(total_mx, span_mx);
        total_mx = f.mx;
        total_s = arith::fma32(span_s, f.after, total_s * f.before);
        total = arith::fma32(span_o, f.after, total * f.before);
      }
    }
  }
  float v = 0.0f;
  if (real) {
    const float gate =
        a.in[static_cast<size_t>(row) * a.ld + static_cast<size_t>(head) * 2 * d + d + n];
    v = arith::div32(total, total_s) * arith::sigmoid32(gate);
    a.out[static_cast<size_t>(row) * a.ld_out() + head * d + n] = v;
  }
  if (d % 32 == 0)
    quantize_group(v, lane, a.act, a.ld_out() / arith::kGroup, (head * d + n) / arith::kGroup, row,
                   a.m);
}

// grid: (Hq, m), threads: D rounded up to 32
static __global__ void __launch_bounds__(512)
    kernel_attention_merge(AttentionArgs a, const StepParams* step) {
  wait_letting_go();
  attention_merge(a, step, blockIdx.x, blockIdx.y, threadIdx.x);
}

}  // namespace vcuda::gpu
