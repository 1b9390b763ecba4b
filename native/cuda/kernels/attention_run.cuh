// Partial results of attention: scores, exponentials and weighted values of a run of chunks.
//
// Both products are tiled in registers: 256 threads are G groups; a thread has TQ queries and G
// keys of one of the contract's four lanes over D, then the same queries and G dimensions (of 256).
// A step of either product is four rows of a piece: TQ * G * 4 fma for TQ + G reads of 16 bytes,
// those of the queries (or exponentials) one address for 8 or 32 threads.
#pragma once

#include "kernels/attention_pieces.cuh"

namespace vcuda::gpu {

// A float's bits as an integer of the same order, and back.
__device__ __forceinline__ int ordered(int bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

template <int G, int TQ, int V>
class AttentionRun {
 public:
  static constexpr int Q = G * TQ;

  // A run of `work` for the queries [group * Q, + Q) of a key head.
  __device__ __forceinline__ AttentionRun(const AttentionArgs& a, int position,
                                          const AttentionWork& work, float* shared, int kv,
                                          int group, int run)
      : a_(a),
        position_(position),
        spans_(work.spans),
        kv_(kv),
        first_(group * Q),
        most_(a.m * a.per_kv()),
        begin_(run * work.length),
        end_(min(begin_ + work.length, work.chunks)),
        pieces_(a, position, shared, kv, begin_, end_),
        queries_(shared + kAttentionPieces * a.room.piece),
        scores_(queries_ + Q * 4 * kPitch),
        maxima_(scores_ + Q * kScorePitch),
        visible_(reinterpret_cast<int*>(maxima_ + 4 * Q)) {}

  // What may be done before the wait for the keys of this step.
  __device__ __forceinline__ void early() { pieces_.early(); }

  // Everything is there.
  __device__ __forceinline__ void run() {
    const int t = threadIdx.x, r = a_.per_kv();
    pieces_.fill();
    if (t < Q) visible_[t] = position_ + min(first_ + t, most_ - 1) / r + 1;
    load_queries(r);
    float total[TQ][kDims][kWidth];
    // Without a value they would be live from the kernel's start.
    each(total, [](float& x, int, int, int) { x = 0.0f; });
#pragma unroll 1
    for (int c = begin_; c < end_; ++c) {
      scores();
      // A warp that has all keys of its queries makes their exponentials too. Whoever uses those,
      // and whoever writes the next chunk's scores, has met the others in land() before.
      if constexpr (kParts == 1) __syncwarp();
      else __syncthreads();
      exponentials(c);
      values(c, total);
    }
    __syncthreads();  // everything in shared memory may be written again
  }

 private:
  // A warp has 8 positions (kg) of each of the contract's lanes (l); warps are split over groups
  // (g) and, inside a group, over keys (part).
  static constexpr int kParts = 8 / G, kWidth = G < 4 ? G : 4, kKeys = G / kWidth;
  static constexpr int kThreads = kAttentionThreads / G, kDims = V * kKeys;  // vectors of a thread
  static constexpr int kPitch = query_pitch(V), kScorePitch = kAttentionScorePitch;
  static constexpr uint32_t kFloat = sizeof(float);
  static_assert(arith::kScoreLanes == 4 && arith::kExpLanes == 32,
                "four threads a key, a warp a query");

  const AttentionArgs& a_;
  const int position_;
  const bool spans_;
  const int kv_, first_, most_, begin_, end_;
  AttentionPieces pieces_;
  float *queries_, *scores_, *maxima_;
  int* visible_;

  __device__ __forceinline__ int count_of(int q, int c) const {  // keys of a chunk; <= 0: none
    return min(visible_[q] - c * arith::kChunk, arith::kChunk);
  }

  template <int N, class F>
  static __device__ __forceinline__ void each(float (&x)[TQ][N][kWidth], F f) {
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
      for (int v = 0; v < N; ++v)
#pragma unroll
        for (int w = 0; w < kWidth; ++w) f(x[i][v][w], i, v, w);
  }

  // Four dimensions, one of each lane, at a time: [Q][4][D / 4].
  __device__ __forceinline__ void load_queries(int r) const {
    constexpr int kRow = 64 * V, kAtOnce = kAttentionThreads / kRow,
                  kMine = (Q + kAtOnce - 1) / kAtOnce;
    const int t = threadIdx.x, j = t % kRow;
    if (4 * j >= a_.d) return;
    float4 x[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int query = min(first_ + min(t / kRow + i * kAtOnce, Q - 1), most_ - 1),
                row = query / r, head = kv_ * r + query - row * r;
      x[i] = *reinterpret_cast<const float4*>(a_.in + static_cast<size_t>(row) * a_.ld +
                                              static_cast<size_t>(head) * 2 * a_.d + 4 * j);
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int q = t / kRow + i * kAtOnce;
      if (q >= Q) break;
      float* to = queries_ + q * 4 * kPitch + j;
      to[0] = x[i].x, to[kPitch] = x[i].y, to[2 * kPitch] = x[i].z, to[3 * kPitch] = x[i].w;
    }
  }

  // sum += held x streamed, S steps of four rows: rows two at a time, and of each query the four
  // floats that meet a step's rows, both read into a second set of registers while the first is
  // worked on. Without a branch: a read whose use lies behind one is moved there.
  template <int S, int N, class Row, class Held>
  static __device__ __forceinline__ void multiply(float (&sum)[TQ][N][kWidth], Row load_row,
                                                  Held load_held) {
    float streamed[2][2][N][kWidth], held[2][TQ][4];
#pragma unroll
    for (int i = 0; i < TQ; ++i) load_held(held[0][i], i, 0);
#pragma unroll
    for (int y = 0; y < 2; ++y) load_row(streamed[0][y], y);
#pragma unroll
    for (int half = 0; half < 2 * S; ++half) {
      const int step = half / 2;
      if (half + 1 < 2 * S)
#pragma unroll
        for (int y = 0; y < 2; ++y) load_row(streamed[(half + 1) % 2][y], 2 * (half + 1) + y);
      if (step + 1 < S)
#pragma unroll
        for (int i = half % 2; i < TQ; i += 2) load_held(held[(step + 1) % 2][i], i, step + 1);
#pragma unroll
      for (int y = 0; y < 2; ++y)
        each(sum, [&](float& x, int i, int v, int w) {
          x = arith::fma32(held[step % 2][i][half % 2 * 2 + y], streamed[half % 2][y][v][w], x);
        });
    }
  }
  // n steps; advance(s): by s steps.
  template <int N, class Row, class Held, class Advance>
  static __device__ __forceinline__ void multiply_steps(int n, float (&sum)[TQ][N][kWidth],
                                                        Row load_row, Held load_held,
                                                        Advance advance) {
#pragma unroll 1
    for (; n >= 4; n -= 4) multiply<4>(sum, load_row, load_held), advance(4);
#pragma unroll 1
    for (; n > 0; --n) multiply<1>(sum, load_row, load_held), advance(1);
  }

  __device__ __forceinline__ void scores() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, l = lane / 8, kg = lane % 8,
              part = warp % kParts, g = warp / kParts;
    const int key = (part * 8 + kg) * kWidth,
              at = ((key / 4) ^ granule_swizzle(l)) * 4 + key % 4 + l * arith::kChunk;
    uint32_t query =
        shared_at(queries_ + (g * 4 + l) * kPitch);  // a thread's queries are g, g + G, ...
    float sum[TQ][kKeys][kWidth];
    each(sum, [](float& x, int, int, int) { x = 0.0f; });
    const int per_piece = a_.room.piece / (16 * arith::kChunk);
#pragma unroll 1
    for (int steps = a_.d / 16; steps > 0; steps -= per_piece) {  // 16 dimensions each
      uint32_t keys = shared_at(pieces_.land() + at);
      multiply_steps(
          min(steps, per_piece), sum,
          [&](float(&to)[kKeys][kWidth], int row) {
#pragma unroll
            for (int v = 0; v < kKeys; ++v)
              load_vector<kWidth>(
                  to[v], keys + kFloat * (row * 4 * arith::kChunk + v * arith::kChunk / 2));
          },
          [&](float(&to)[4], int i, int step) {
            load_vector<4>(to, query + kFloat * (i * G * 4 * kPitch + step * 4));
          },
          [&](int s) { keys += s * kFloat * 16 * arith::kChunk, query += s * kFloat * 4; });
    }
    // (0+1)+(2+3) over the lanes; of a thread's keys each lane keeps its share.
    const bool odd = l & 1, high = l & 2;
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
      for (int v = 0; v < kKeys; ++v) {
        float* s = sum[i][v];
        const float sent = odd ? s[0] : s[1];
        float kept = (odd ? s[1] : s[0]) + __shfl_xor_sync(kFull, sent, 8);
        if constexpr (kWidth == 4) {
          const float sent2 = odd ? s[2] : s[3];
          const float second = (odd ? s[3] : s[2]) + __shfl_xor_sync(kFull, sent2, 8);
          kept = (high ? second : kept) + __shfl_xor_sync(kFull, high ? kept : second, 16);
        } else {
          kept += __shfl_xor_sync(kFull, kept, 16);
        }
        if (kWidth == 4 || l / 2 == i % 2)
          scores_[(i * G + g) * kScorePitch + key + v * arith::kChunk / 2 + l % kWidth] =
              kept * a_.scale;
      }
  }

  // Scores become exponentials; maximum and sum of the chunk, or of the span so far. A warp has the
  // queries warp, warp + 8, ...; the steps of all of them go together.
  __device__ __forceinline__ void exponentials(int c) {
    constexpr int kMine = (Q + 7) / 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (Q < 8 && warp >= Q) return;
    float e0[kMine], e1[kMine], best[kMine], sum[kMine];
    bool first_in[kMine], second_in[kMine];
    // A warp that has one query less works on its first one twice, and on no other warp's.
    auto query = [&](int i) { return Q % 8 == 0 || warp + 8 * i < Q ? warp + 8 * i : warp; };
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int count = count_of(query(i), c);
      const float* from = scores_ + query(i) * kScorePitch + lane;
      first_in[i] = lane < count, second_in[i] = lane + 32 < count;
      e0[i] = from[0], e1[i] = from[32];
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int lowest = static_cast<int>(0x80000000u);
      const int top =
          __reduce_max_sync(kFull, max(first_in[i] ? ordered(__float_as_int(e0[i])) : lowest,
                                       second_in[i] ? ordered(__float_as_int(e1[i])) : lowest));
      best[i] = __int_as_float(ordered(top));
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      e0[i] = first_in[i] ? arith::exp32(e0[i] - best[i]) : 0.0f;
      e1[i] = second_in[i] ? arith::exp32(e1[i] - best[i]) : 0.0f;
      sum[i] = 0.0f + e0[i];
      if (second_in[i]) sum[i] += e1[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      float* to = scores_ + query(i) * kScorePitch + lane;
      to[0] = e0[i], to[32] = e1[i];
    }
#pragma unroll
    for (int n = 1; n < 32; n *= 2)
#pragma unroll
      for (int i = 0; i < kMine; ++i) sum[i] += __shfl_xor_sync(kFull, sum[i], n);
    float mx = best[0], s = sum[0];  // lane i takes the i-th query
#pragma unroll
    for (int i = 1; i < kMine; ++i)
      if (lane == i) mx = best[i], s = sum[i];
    const int q = warp + 8 * lane;
    if (lane < kMine && q < Q && count_of(q, c) > 0) {
      float *maxima = maxima_ + q, *sums = maxima + Q;
      if (spans_ && c != begin_) {
        const Merge f(*maxima, mx);
        maxima[2 * Q] = f.before, maxima[3 * Q] = f.after;
        mx = f.mx, s = arith::fma32(s, f.after, *sums * f.before);
      }
      *maxima = mx, *sums = s;
    }
  }

  __device__ __forceinline__ void values(int c, float (&total)[TQ][kDims][kWidth]) {
    const int t = threadIdx.x, warp = t / 32, g = warp / kParts, dim = t % kThreads * kWidth,
              d = a_.d;
    uint32_t at[kDims];  // a thread without dimensions works on others and writes nothing
#pragma unroll
    for (int v = 0; v < kDims; ++v) at[v] = kFloat * min(dim + v * kThreads * kWidth, d - kWidth);
    float o[TQ][kDims][kWidth];
    each(o, [](float& x, int, int, int) { x = 0.0f; });
    // Later queries see no fewer keys: up to `fewest` every query sees them.
    const int fewest = count_of(0, c) & ~3, most = count_of(Q - 1, c);
    const float* scores = scores_ + g * kScorePitch;
    const uint32_t exponentials = shared_at(scores), row = kFloat * d;
#pragma unroll 1
    for (int key = 0; key < arith::kChunk;) {
      uint32_t value = shared_at(pieces_.land());
      const int end = key + a_.room.keys, all = min(fewest, end), some = min(most, end);
      multiply_steps((all - key) / 4, o,
                     [&](float(&to)[kDims][kWidth], int y) {
#pragma unroll
                       for (int v = 0; v < kDims; ++v)
                         load_vector<kWidth>(to[v], value + y * row + at[v]);
                     },
                     [&](float(&to)[4], int i, int step) {
                       load_vector<4>(
                           to, exponentials + kFloat * (i * G * kScorePitch + key + step * 4));
                     },
                     [&](int n) { value += n * 4 * row, key += n * 4; });
#pragma unroll 1
      for (; key < some; ++key, value += row) {
        float y[kDims][kWidth];
#pragma unroll
        for (int v = 0; v < kDims; ++v) load_vector<kWidth>(y[v], value + at[v]);
#pragma unroll
        for (int i = 0; i < TQ; ++i) {
          const bool sees = key < count_of(i * G + g, c);
          const float f = scores[i * G * kScorePitch + key];
#pragma unroll
          for (int v = 0; v < kDims; ++v)
#pragma unroll
            for (int w = 0; w < kWidth; ++w)
              o[i][v][w] = sees ? arith::fma32(f, y[v][w], o[i][v][w]) : o[i][v][w];
        }
      }
      key = end;
    }
    // One branch for all: with one a float the compiler has 48 of them.
    if (!spans_ || c == begin_) {
      each(total, [&](float& sum, int i, int v, int w) { sum = o[i][v][w]; });
    } else {
#pragma unroll
      for (int i = 0; i < TQ; ++i) {
        const int q = i * G + g;
        const bool seen = count_of(q, c) > 0;
        const float before = maxima_[2 * Q + q], after = maxima_[3 * Q + q];
#pragma unroll
        for (int v = 0; v < kDims; ++v)
#pragma unroll
          for (int w = 0; w < kWidth; ++w) {
            const float merged = arith::fma32(o[i][v][w], after, total[i][v][w] * before);
            total[i][v][w] = seen ? merged : total[i][v][w];
          }
      }
    }
    if (!spans_) write(c, c, total);
    else if (c + 1 == end_) write(begin_ / arith::kSpanChunks, begin_, total);
  }

  // A partial result of the queries that see chunk c.
  __device__ __forceinline__ void write(int unit, int c,
                                        const float (&o)[TQ][kDims][kWidth]) const {
    const int t = threadIdx.x, g = t / 32 / kParts, dim = t % kThreads * kWidth, d = a_.d,
              pitch = partial_pitch(d);
    float* to =
        a_.partial + ((static_cast<size_t>(kv_) * most_ + first_ + g) * a_.units + unit) * pitch;
#pragma unroll
    for (int i = 0; i < TQ; ++i, to += static_cast<size_t>(G) * a_.units * pitch) {
      const int q = i * G + g;
      if (first_ + q >= most_ || count_of(q, c) <= 0) continue;
#pragma unroll
      for (int v = 0; v < kDims; ++v) {
        const int n = dim + v * kThreads * kWidth;
        if (n < d) store_vector<kWidth>(to + n, o[i][v]);
      }
      if (dim == 0) to[d] = maxima_[q], to[d + 1] = maxima_[Q + q];
    }
  }
};

// The runs of a block, one after the other; the last runs, which may be short, are the last tasks.
template <int G, int TQ, int V>
__device__ __forceinline__ void attend(const AttentionArgs& a, int position, float* shared) {
  using Run = AttentionRun<G, TQ, V>;
  const int groups = ceil_div(a.m * a.per_kv(), Run::Q);
  const AttentionWork work(position + a.m, a.kv_heads * groups, gridDim.x);
  const int each = a.kv_heads * groups, total = each * work.runs;
  bool waited = false;
#pragma unroll 1
  for (int task = blockIdx.x; task < total; task += gridDim.x) {
    const int which = task % each;
    Run run(a, position, work, shared, which / groups, which % groups, task / each);
    run.early();
    // By its wait the projection in front of attention has ended, so the merge may read its rows.
    if (!waited) wait_for_predecessor();
    waited = true;
    run.run();
  }
}

// grid: any number of blocks, one on a multiprocessor. Many: tiles of 6 * Many queries. Half of the
// largest tile takes more than half of its time, but few keys are split over more blocks then.
template <int Many, int V>
static __global__ void __launch_bounds__(kAttentionThreads, 1)
    kernel_attention(AttentionArgs a, const StepParams* step) {
  extern __shared__ __align__(16) float attention_memory[];
  const int position = __ldcg(&step->position);  // before the wait: past the first-level cache
  if constexpr (Many == 8) {
    const int halves = ceil_div(a.m * a.per_kv(), 24) * a.kv_heads;
    if (ceil_div(position + a.m, arith::kChunk) * halves <= static_cast<int>(gridDim.x))
      return attend<4, 6, V>(a, position, attention_memory);
  }
  attend<Many == 1 ? 2 : Many, Many == 1 ? 3 : 6, V>(a, position, attention_memory);
}

}  // namespace vcuda::gpu
