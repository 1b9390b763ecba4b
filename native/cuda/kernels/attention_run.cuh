// Partial results of attention: scores, exponentials and weighted values of a run of chunks.
//
// Keys and values stream through shared memory in pieces by cp.async, seven pieces ahead; those of
// earlier steps are asked for before the wait for the new ones. Both products are tiled in
// registers: 256 threads are G groups; a thread has TQ queries and G keys of one of the contract's
// four lanes over D, then the same queries and G dimensions (of 256). A step of either product is
// four rows of a piece: TQ * G * 4 fma for TQ + G reads of 16 bytes, those of the queries (or
// exponentials) one address for 8 or 32 threads.
#pragma once

#include "arith/exp.h"
#include "kernels/attention_plan.cuh"

namespace vcuda::gpu {

// 16 bytes to shared memory, past the first-level cache.
__device__ __forceinline__ void copy_async(float* to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// W consecutive floats as one access.
template <int W>
__device__ __forceinline__ void load_vector(float* to, const float* from) {
  if constexpr (W == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    static_assert(W == 2, "two or four");
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  }
}
template <int W>
__device__ __forceinline__ void store_vector(float* to, const float* from) {
  if constexpr (W == 4)
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  else *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
}

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
        pieces_(shared),
        queries_(pieces_ + kAttentionPieces * a.room.piece),
        scores_(queries_ + Q * 4 * kPitch),
        maxima_(scores_ + Q * kScorePitch),
        visible_(reinterpret_cast<int*>(maxima_ + 4 * Q)),
        per_chunk_(a.room.key_pieces + arith::kChunk / a.room.keys),
        left_((end_ - begin_) * per_chunk_) {
    const size_t from = kv * a.head_floats + static_cast<size_t>(begin_) * arith::kChunk * a.d;
    ask_key_ = a.keys + from + threadIdx.x * 4, ask_value_ = a.values + from + threadIdx.x * 4;
  }

  // Asks for pieces that earlier steps wrote.
  __device__ __forceinline__ void early() {
    const int old = (min(position_ / arith::kChunk, end_) - begin_) * per_chunk_;
#pragma unroll 1
    while (asked_ < min(old, kAttentionPieces - 1)) ask();
  }

  // Everything is there.
  template <class Sync>
  __device__ __forceinline__ void run(Sync sync) {
    const int t = threadIdx.x, r = a_.per_kv();
#pragma unroll 1
    while (asked_ < kAttentionPieces - 1) ask();
    if (t < Q) visible_[t] = position_ + min(first_ + t, most_ - 1) / r + 1;
    load_queries(r);
    float total[TQ][kDims][kWidth];
#pragma unroll
    for (int i = 0; i < TQ; ++i)  // without a value they would be live from the kernel's start
#pragma unroll
      for (int v = 0; v < kDims; ++v)
#pragma unroll
        for (int x = 0; x < kWidth; ++x) total[i][v][x] = 0.0f;
#pragma unroll 1
    for (int c = begin_; c < end_; ++c) {
      scores(sync);
      if constexpr (kParts == 1) __syncwarp();  // a warp has all keys of its queries
      else sync();
      exponentials(c);
      values(c, total, sync);
    }
    sync();  // everything in shared memory may be written again
  }

 private:
  // A warp has 8 positions (kg) of each of the contract's lanes (l); warps are split over groups
  // (g) and, inside a group, over keys (part).
  static constexpr int kParts = 8 / G, kWidth = G < 4 ? G : 4, kKeys = G / kWidth;
  static constexpr int kThreads = kAttentionThreads / G, kDims = V * kKeys;  // vectors of a thread
  static constexpr int kPitch = query_pitch(V), kScorePitch = kAttentionScorePitch;
  static_assert(arith::kScoreLanes == 4 && arith::kExpLanes == 32,
                "four threads a key, a warp a query");

  const AttentionArgs& a_;
  const int position_;
  const bool spans_;
  const int kv_, first_, most_, begin_, end_;
  float *pieces_, *queries_, *scores_, *maxima_;
  int* visible_;
  const int per_chunk_;
  int left_, asked_ = 0, ask_piece_ = 0, ask_slot_ = 0, slot_ = 0;
  const float *ask_key_, *ask_value_;  // this thread's next granule

  __device__ __forceinline__ int count_of(int q, int c) const {  // keys of a chunk; <= 0: none
    return min(visible_[q] - c * arith::kChunk, arith::kChunk);
  }

  // Granules (4 keys) of a row of keys change places by the row's lane, so that a warp's reads of
  // four rows meet no bank twice.
  static __device__ __forceinline__ int swizzle(int l) { return (l & 1) * 4 + (l >> 1) * 2; }

  // Asks for the next piece, if there is one; a group of copies in any case.
  __device__ __forceinline__ void ask() {
    if (left_ > 0) {
      const int t = threadIdx.x, piece = a_.room.piece;
      const bool is_key = ask_piece_ < a_.room.key_pieces;
      const int floats = is_key ? min(piece, a_.d * arith::kChunk - ask_piece_ * piece)
                                : a_.room.keys * a_.d,
                place = is_key ? t ^ swizzle(t / 16 % 4) : t;
      const float* from = is_key ? ask_key_ : ask_value_;
      float* to = pieces_ + ask_slot_ * piece + place * 4;
#pragma unroll
      for (int i = 0; i < kAttentionPiece / 4 / kAttentionThreads; ++i)
        if ((t + i * kAttentionThreads) * 4 < floats)
          copy_async(to + i * 4 * kAttentionThreads, from + i * 4 * kAttentionThreads);
      if (is_key) ask_key_ = from + floats;
      else ask_value_ = from + floats;
      if (++ask_piece_ == per_chunk_) ask_piece_ = 0;
      --left_;
    }
    ++asked_;
    copy_commit();
    ask_slot_ = (ask_slot_ + 1) % kAttentionPieces;
  }

  // The next piece, complete; its place.
  template <class Sync>
  __device__ __forceinline__ const float* land(Sync sync) {
    const float* at = pieces_ + slot_ * a_.room.piece;
    copy_wait<kAttentionPieces - 2>();
    sync();  // every thread's copies are there, and every thread is done with the piece before
    ask();   // into that one's place
    slot_ = (slot_ + 1) % kAttentionPieces;
    return at;
  }

  // Four dimensions, one of each lane, at a time: [Q][4][D / 4].
  __device__ __forceinline__ void load_queries(int r) const {
    constexpr int kRow = 64 * V, kAtOnce = kAttentionThreads / kRow, kMine = (Q + kAtOnce - 1) / kAtOnce;
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

  template <class Sync>
  __device__ __forceinline__ void scores(Sync sync) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, l = lane / 8, kg = lane % 8,
              part = warp % kParts, g = warp / kParts;
    const int key = (part * 8 + kg) * kWidth,
              at = ((key / 4) ^ swizzle(l)) * 4 + key % 4 + l * arith::kChunk;
    const float* query = queries_ + (g * 4 + l) * kPitch;  // a thread's queries are g, g + G, ...
    float sum[TQ][kKeys][kWidth];
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
      for (int v = 0; v < kKeys; ++v)
#pragma unroll
        for (int x = 0; x < kWidth; ++x) sum[i][v][x] = 0.0f;
    const int per_piece = a_.room.piece / (16 * arith::kChunk);
#pragma unroll 1
    for (int steps = a_.d / 16; steps > 0; steps -= per_piece) {  // 16 dimensions each
      const float* keys = land(sync) + at;
      float q[TQ][4], k[4][kKeys][kWidth];
      auto load_key = [&](int y) {
#pragma unroll
        for (int v = 0; v < kKeys; ++v)
          load_vector<kWidth>(k[y][v], keys + y * 4 * arith::kChunk + v * arith::kChunk / 2);
      };
#pragma unroll
      for (int i = 0; i < TQ; ++i) load_vector<4>(q[i], query + i * G * 4 * kPitch);
#pragma unroll
      for (int y = 0; y < 4; ++y) load_key(y);
      // Operands of the next step come into the registers of those that have been used; the last
      // step of a piece brings its own keys again, and queries from the pad, which nobody uses.
#pragma unroll 1
      for (int left = min(steps, per_piece); left > 0; --left) {
        keys += left > 1 ? 16 * arith::kChunk : 0, query += 4;
#pragma unroll
        for (int y = 0; y < 4; ++y) {
#pragma unroll
          for (int i = 0; i < TQ; ++i) {
#pragma unroll
            for (int v = 0; v < kKeys; ++v)
#pragma unroll
              for (int x = 0; x < kWidth; ++x)
                sum[i][v][x] = arith::fma32(q[i][y], k[y][v][x], sum[i][v][x]);
            if (y == 3) load_vector<4>(q[i], query + i * G * 4 * kPitch);
          }
          load_key(y);
        }
      }
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
    auto query = [&](int i) { return min(warp + 8 * i, Q - 1); };  // the last one twice
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

  template <class Sync>
  __device__ __forceinline__ void values(int c, float (&total)[TQ][kDims][kWidth], Sync sync) {
    const int t = threadIdx.x, warp = t / 32, g = warp / kParts, dim = t % kThreads * kWidth,
              d = a_.d;
    int at[kDims];  // a thread without dimensions works on others and writes nothing
#pragma unroll
    for (int v = 0; v < kDims; ++v) at[v] = min(dim + v * kThreads * kWidth, d - kWidth);
    float o[TQ][kDims][kWidth];
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
      for (int v = 0; v < kDims; ++v)
#pragma unroll
        for (int x = 0; x < kWidth; ++x) o[i][v][x] = 0.0f;
    // Later queries see no fewer keys: up to `fewest` every query sees them.
    const int fewest = count_of(0, c) & ~3, most = count_of(Q - 1, c);
    const float* scores = scores_ + g * kScorePitch;
#pragma unroll 1
    for (int key = 0; key < arith::kChunk;) {
      const float* value = land(sync);
      const int end = key + a_.room.keys, all = min(fewest, end), some = min(most, end);
      float x[4][kDims][kWidth], e[TQ][4];
      auto load_value = [&](int y) {
#pragma unroll
        for (int v = 0; v < kDims; ++v) load_vector<kWidth>(x[y][v], value + y * d + at[v]);
      };
      auto load_exponential = [&](int i) {
        load_vector<4>(e[i], scores + i * G * kScorePitch + key);
      };
#pragma unroll
      for (int i = 0; i < TQ; ++i) load_exponential(i);
#pragma unroll
      for (int y = 0; y < 4; ++y) load_value(y);
#pragma unroll 1
      while (key < all) {  // as in scores(): the last four keys of a piece are brought again
        key += 4, value += key < end ? 4 * d : 0;
#pragma unroll
        for (int y = 0; y < 4; ++y) {
#pragma unroll
          for (int i = 0; i < TQ; ++i) {
#pragma unroll
            for (int v = 0; v < kDims; ++v)
#pragma unroll
              for (int w = 0; w < kWidth; ++w)
                o[i][v][w] = arith::fma32(e[i][y], x[y][v][w], o[i][v][w]);
            if (y == 3) load_exponential(i);
          }
          load_value(y);
        }
      }
#pragma unroll 1
      for (; key < some; ++key, value += d) {
        load_value(0);
#pragma unroll
        for (int i = 0; i < TQ; ++i) {
          const bool sees = key < count_of(i * G + g, c);
          const float f = scores[i * G * kScorePitch + key];
#pragma unroll
          for (int v = 0; v < kDims; ++v)
#pragma unroll
            for (int w = 0; w < kWidth; ++w)
              o[i][v][w] = sees ? arith::fma32(f, x[0][v][w], o[i][v][w]) : o[i][v][w];
        }
      }
      key = end;
    }
    const bool first = !spans_ || c == begin_;
#pragma unroll
    for (int i = 0; i < TQ; ++i) {
      const int q = i * G + g;
      const bool seen = count_of(q, c) > 0;
      const float before = maxima_[2 * Q + q], after = maxima_[3 * Q + q];
#pragma unroll
      for (int v = 0; v < kDims; ++v)
#pragma unroll
        for (int w = 0; w < kWidth; ++w) {
          float& sum = total[i][v][w];
          if (first) sum = o[i][v][w];
          else if (seen) sum = arith::fma32(o[i][v][w], after, sum * before);
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
        a_.partial +
        ((static_cast<size_t>(kv_) * most_ + first_ + g) * a_.units + unit) * pitch;
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
    run.run([] { __syncthreads(); });
  }
}

// grid: any number of blocks, one on a multiprocessor. Many: tiles of up to 6 * Many queries. Few
// keys are split over more blocks, each with fewer queries.
template <int Many, int V>
static __global__ void __launch_bounds__(kAttentionThreads, 1)
    kernel_attention(AttentionArgs a, const StepParams* step) {
  extern __shared__ __align__(16) float attention_memory[];
  const int position = __ldcg(&step->position);  // before the wait: past the first-level cache
  if constexpr (Many == 1) {
    attend<2, 3, V>(a, position, attention_memory);
  } else {
    const int blocks = gridDim.x * 3 / 4, chunks = ceil_div(position + a.m, arith::kChunk),
              queries = a.m * a.per_kv();
    auto fills = [&](int q) { return a.kv_heads * chunks * ceil_div(queries, q) >= blocks; };
    if constexpr (Many >= 8)
      if (fills(48)) return attend<8, 6, V>(a, position, attention_memory);
    if constexpr (Many >= 4)
      if (fills(24)) return attend<4, 6, V>(a, position, attention_memory);
    attend<2, 6, V>(a, position, attention_memory);
  }
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
