// One unit of attention: norm and rotary of its queries and of the keys that are new in it, the
// append of those, and the partial results of its chunks or its span.
//
// Keys and values stream through shared memory in pieces by cp.async, seven pieces ahead; the
// first pieces are asked for before the projection in front has ended. Both products are tiled in
// registers: 256 threads are G groups, a thread has 6 (or 3) queries and G keys of one of the
// contract's four lanes over D, then the same queries and G dimensions (of 256).
#pragma once

#include "arith/exp.h"
#include "arith/trig.h"
#include "kernels/attention_plan.cuh"

namespace vcuda::gpu {

// Factors of a merge of (mx, s) with a later (mx', s').
struct Merge {
  float mx, before, after;
  __device__ __forceinline__ Merge(float a, float b) {
    mx = a > b ? a : b;
    before = arith::exp32(a - mx);
    after = arith::exp32(b - mx);
  }
};

// 16 bytes to shared memory, of which `bytes` are read and the others zero.
__device__ __forceinline__ void copy_async(float* to, const float* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(bytes)
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
  } else if constexpr (W == 2) {
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else {
    to[0] = *from;
  }
}
template <int W>
__device__ __forceinline__ void store_vector(float* to, const float* from) {
  if constexpr (W == 4)
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  else if constexpr (W == 2) *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
  else *to = *from;
}

// A float's bits as an integer of the same order, and back.
__device__ __forceinline__ int ordered(int bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

// Where a unit stands. Key heads and groups are one index, `head` = key head * groups + group.
struct AttentionUnit {
  int head, begin, end;  // chunks
  bool whole;            // one partial result
};

// What a block's functions share, at the front of its shared memory: in registers it would be live
// throughout.
struct AttentionShared {
  AttentionArgs args;
  AttentionSplit split;
  MergePlan plan;
  AttentionUnit unit;
  int position;  // of the launch's first row
  int ticket;
};
static_assert(sizeof(AttentionShared) <= kSharedFloats * sizeof(float), "room for it");

// memory_at: in bytes, of the block's shared memory.
__device__ __forceinline__ AttentionShared& attention_shared(int memory_at) {
  extern __shared__ __align__(128) uint8_t attention_memory[];
  return *reinterpret_cast<AttentionShared*>(attention_memory + memory_at);
}

template <int G, int TQ, int V>
class AttentionRun {
 public:
  static constexpr int Q = G * TQ;

  template <class Sync, class Ready>
  static __device__ __forceinline__ void run(int memory_at, Sync sync, Ready ready) {
    AttentionRun r(attention_shared(memory_at));
    // Some pieces before the projection's end is waited for, the others behind the heads' loads.
    constexpr int kEarly = kAttentionPieces / 2;
#pragma unroll 1
    for (int i = 0; i < kEarly; ++i) r.issue();
    r.angles();
    ready();
    sync();
    r.heads();
#pragma unroll 1
    for (int i = kEarly; i < kAttentionPieces - 1; ++i) r.issue();
    if (r.news_) sync();
    r.chunks(sync);
  }

 private:
  // A warp has 8 positions (kg) of each of the contract's lanes (l); warps are split over groups
  // (g) and, inside a group, over keys (part).
  static constexpr int kParts = 8 / G, kWidth = G < 4 ? G : 4, kKeys = G / kWidth;
  static constexpr int kThreads = kAttentionThreads / G, kDims = V * kKeys;  // vectors of a thread
  static constexpr int kTile = TQ == 3 ? 0 : G == 1 ? 1 : G == 2 ? 2 : G == 4 ? 3 : 4;
  static constexpr int kPitch = tile_pitch(kTile), kPlaces = TQ == 3 ? 4 : 6;
  static_assert(tile_queries(kTile) == Q, "the tile's queries");
  static constexpr int kRing = 4, kAhead = 2;  // rows of operands in registers, rows ahead

  const AttentionArgs& a_;
  const AttentionSplit& split_;
  const AttentionUnit& u_;
  const int position_, t_, d_, lane_, warp_, first_;
  const int piece_, piece_keys_;        // floats of a piece; keys of a piece of values
  const int key_pieces_, piece_count_;  // of a chunk
  const bool news_;
  const bool even_;  // every piece is a whole one
  float *pieces_, *queries_, *scores_, *fresh_, *angles_, *maxima_;
  int* visible_;
  int ask_chunk_, ask_piece_ = 0, ask_slot_ = 0, slot_ = 0;
  const float *ask_key_, *ask_value_;  // this thread's next granule, where pieces are whole

  __device__ __forceinline__ explicit AttentionRun(AttentionShared& shared)
      : a_(shared.args),
        split_(shared.split),
        u_(shared.unit),
        position_(shared.position),
        t_(threadIdx.x),
        d_(a_.d),
        lane_(t_ % 32),
        warp_(t_ / 32),
        first_(u_.head % split_.groups * Q),
        piece_(a_.room.piece),
        piece_keys_(a_.room.keys),
        key_pieces_(ceil_div(d_ * arith::kChunk, piece_)),
        piece_count_(key_pieces_ + arith::kChunk / piece_keys_),
        news_(u_.end * arith::kChunk > position_),
        even_(d_ * arith::kChunk % piece_ == 0 && piece_keys_ * d_ == piece_),
        pieces_(reinterpret_cast<float*>(&shared) + kSharedFloats),
        queries_(pieces_ + kAttentionPieces * piece_),
        scores_(queries_ + d_ * kPitch),
        fresh_(scores_ + arith::kChunk * kPitch),
        angles_(fresh_ + 2 * a_.rows * d_),
        maxima_(angles_ + a_.rows * d_),
        visible_(reinterpret_cast<int*>(maxima_ + 4 * Q)),
        ask_chunk_(u_.begin) {
    const size_t from = u_.head / split_.groups * a_.head_floats +
                        static_cast<size_t>(u_.begin) * arith::kChunk * d_ + t_ * 4;
    ask_key_ = a_.keys + from, ask_value_ = a_.values + from;
  }

  // Place of query q of the tile in a row: a thread's queries are q, q + G, ...
  static __device__ __forceinline__ int place(int q) { return q % G * kPlaces + q / G; }
  __device__ __forceinline__ int count_of(int q, int c) const {  // keys of a chunk; <= 0: none
    return min(visible_[q] - c * arith::kChunk, arith::kChunk);
  }

  // Granules (4 keys) of a row of keys change places by the row's lane, so that a warp's reads of
  // four rows meet no bank twice.
  static __device__ __forceinline__ int swizzle(int l) { return (l & 1) * 4 + (l >> 1) * 2; }

  // Where a thread's first granule of a piece of keys lies; the next ones are 16 rows further.
  __device__ __forceinline__ int key_granule() const {
    return (t_ / 16 * 16 + (t_ % 16 ^ swizzle(t_ / 16 % 4))) * 4;
  }

  // Asks for the next piece. Keys that are not in the cache yet are left out.
  __device__ __forceinline__ void issue() {
    if (ask_chunk_ < u_.end) {
      constexpr int kStep = 4 * kAttentionThreads;
      const bool is_key = ask_piece_ < key_pieces_;
      const int old = position_ - ask_chunk_ * arith::kChunk,
                bytes = is_key ? min(4 * (old - t_ % 16 * 4), 16) : 16,
                key = (ask_piece_ - key_pieces_) * piece_keys_;
      float* to = pieces_ + ask_slot_ * piece_ + (is_key ? key_granule() : t_ * 4);
      if (even_) {
        const float* from = is_key ? ask_key_ : ask_value_;
        const int most =
            (is_key ? (bytes > 0 ? piece_ : 0) : min(piece_, (old - key) * d_)) - t_ * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (i * kStep < most) copy_async(to + i * kStep, from + i * kStep, bytes);
        if (is_key) ask_key_ = from + piece_;
        else ask_value_ = from + piece_;
      } else {
        const int dims = piece_ / arith::kChunk, dim = ask_piece_ * dims;
        const int count = is_key ? (bytes > 0 ? min(dims, d_ - dim) * (arith::kChunk / 4) : 0)
                                 : min(piece_keys_, old - key) * d_ / 4;
        const float* from = (is_key ? ask_key_ + dim * arith::kChunk : ask_value_ + key * d_) +
                            static_cast<size_t>(ask_chunk_ - u_.begin) * arith::kChunk * d_;
#pragma unroll 1
        for (int e = t_; e < count; e += kAttentionThreads, to += kStep, from += kStep)
          copy_async(to, from, bytes);
      }
      if (++ask_piece_ == piece_count_) ask_piece_ = 0, ++ask_chunk_;
    }
    copy_commit();
    ask_slot_ = (ask_slot_ + 1) % kAttentionPieces;
  }

  // Sines and cosines of all rows; which keys a query sees.
  __device__ __forceinline__ void angles() {
    if (t_ < Q) visible_[t_] = position_ + min(first_ + t_, a_.queries() - 1) / a_.per_kv + 1;
#pragma unroll 1
    for (int row = warp_; row < a_.rows; row += kAttentionThreads / 32)
#pragma unroll 1
      for (int j = lane_; j < a_.half; j += 32) {
        double s, c;
        arith::sincos64(static_cast<double>(position_ + row) * static_cast<double>(a_.inv_freq[j]),
                        s, c);
        float* to = angles_ + (row * a_.half + j) * 2;
        to[0] = static_cast<float>(s), to[1] = static_cast<float>(c);
      }
  }

  // One head on its way from memory: dimensions lane, lane + 32, ...
  struct Head {
    int row;
    bool is_q, wanted;
    float* to;  // of dimension 0 in shared memory
    float x[8 * V], weight[8 * V], value[8 * V];
  };
  // Item i: query i, or key i - queries of those that are new.
  __device__ __forceinline__ void fetch(Head& h, int i, int queries, int items) const {
    const int r = a_.per_kv, kv = u_.head / split_.groups;
    h.is_q = i < queries;
    h.row = h.is_q ? (first_ + i) / r : i - queries;
    const int at = position_ + h.row;
    h.wanted =
        i < items && (h.is_q || (at >= u_.begin * arith::kChunk && at < u_.end * arith::kChunk));
    h.to = h.is_q ? queries_ + place(i) : fresh_ + h.row * d_;
    const float* x = a_.in + static_cast<size_t>(h.row) * a_.ld +
                     (h.is_q ? (kv * r + (first_ + i) % r) * 2 * d_ : (a_.q_heads * 2 + kv) * d_);
    const float *w = h.is_q ? a_.q_norm : a_.k_norm, *value = x + a_.kv_heads * d_;
#pragma unroll
    for (int j = 0; j < 8 * V; ++j) {
      const int n = lane_ + 32 * j;
      h.x[j] = h.wanted && n < d_ ? x[n] : 0.0f;
      h.weight[j] = h.wanted && n < d_ ? w[n] : 0.0f;
      h.value[j] = h.wanted && !h.is_q && n < d_ ? value[n] : 0.0f;
    }
  }
  // Norm and rotary; a new key and its value are appended by group 0.
  __device__ __forceinline__ void finish(const Head& h) const {
    if (!h.wanted) return;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8 * V; ++j)
      if (lane_ + 32 * j < d_) sum = arith::fma32(h.x[j], h.x[j], sum);
    const float r = arith::div32(
        1.0f, arith::sqrt32(arith::div32(warp_tree(sum), static_cast<float>(d_)) + a_.eps));
    const int step = h.is_q ? kPitch : 1;
#pragma unroll
    for (int j = 0; j < 8 * V; ++j)
      if (lane_ + 32 * j < d_) h.to[(lane_ + 32 * j) * step] = h.x[j] * r * h.weight[j];
    __syncwarp();
#pragma unroll 1
    for (int j = lane_; j < a_.half; j += 32) {
      const float2 angle = *reinterpret_cast<const float2*>(angles_ + (h.row * a_.half + j) * 2);
      float &lo = h.to[j * step], &hi = h.to[(j + a_.half) * step];
      const float x = lo, y = hi;
      lo = arith::fma32(x, angle.y, -(y * angle.x));
      hi = arith::fma32(y, angle.y, x * angle.x);
    }
    __syncwarp();
    if (h.is_q) return;
    const int at = position_ + h.row, kv = u_.head / split_.groups;
    float* key_to = a_.keys + kv * a_.head_floats +
                    static_cast<size_t>(at / arith::kChunk) * d_ * arith::kChunk +
                    at % arith::kChunk;
    float* value_to = a_.values + kv * a_.head_floats + static_cast<size_t>(at) * d_;
#pragma unroll
    for (int j = 0; j < 8 * V; ++j) {
      const int n = lane_ + 32 * j;
      if (n >= d_) break;
      h.to[a_.rows * d_ + n] = h.value[j];
      if (first_ != 0) continue;
      key_to[static_cast<size_t>(n) * arith::kChunk] = h.to[n];
      value_to[n] = h.value[j];
    }
  }
  __device__ __forceinline__ void heads() const {
    constexpr int kWarps = kAttentionThreads / 32;
    const int queries = min(Q, a_.queries() - first_), items = queries + (news_ ? a_.rows : 0);
#pragma unroll 1
    for (int i = warp_; i < items; i += 2 * kWarps) {
      Head one, two;  // both are on their way at once
      fetch(one, i, queries, items), fetch(two, i + kWarps, queries, items);
      finish(one), finish(two);
    }
  }

  // The next piece, complete; its place. A thread adds the new keys to the granules that it copied
  // itself, before the barrier that shows the piece to the others.
  template <class Sync>
  __device__ __forceinline__ const float* land(int c, int index, Sync sync) {
    float* at = pieces_ + slot_ * piece_;
    copy_wait<kAttentionPieces - 2>();
    if ((c + 1) * arith::kChunk > position_) add_news(at, c, index);
    sync();  // and the piece before is free: every thread is done with it
    issue();
    slot_ = (slot_ + 1) % kAttentionPieces;
    return at;
  }
  __device__ __forceinline__ void add_news(float* at, int c, int index) const {
    const int news = c * arith::kChunk - position_;  // the chunk's first key among the new ones
    if (index < key_pieces_) {
      const int dims = piece_ / arith::kChunk, row0 = news + t_ % 16 * 4;
      if (row0 + 3 < 0 || row0 >= a_.rows) return;
      float* to = at + key_granule();
      const float* from = fresh_ + row0 * d_ + index * dims + t_ / 16;
      const int count = min(dims, d_ - index * dims);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          if (t_ / 16 + 16 * i < count && row0 + x >= 0 && row0 + x < a_.rows)
            to[i * 4 * kAttentionThreads + x] = from[x * d_ + 16 * i];
      return;
    }
    const int first = news + (index - key_pieces_) * piece_keys_;
#pragma unroll 1
    for (int row = max(first, 0); row < min(first + piece_keys_, a_.rows); ++row)
      for (int n = 4 * t_; n < d_; n += 4 * kAttentionThreads)
        *reinterpret_cast<float4*>(at + (row - first) * d_ + n) =
            *reinterpret_cast<const float4*>(fresh_ + (a_.rows + row) * d_ + n);
  }

  template <class Sync>
  __device__ __forceinline__ void chunks(Sync sync) {
    float total[TQ][kDims][kWidth];
#pragma unroll
    for (int i = 0; i < TQ; ++i)  // without a value they would be live from the kernel's start
#pragma unroll
      for (int v = 0; v < kDims; ++v)
#pragma unroll
        for (int x = 0; x < kWidth; ++x) total[i][v][x] = 0.0f;
#pragma unroll 1
    for (int c = u_.begin; c < u_.end; ++c) {
      scores(c, sync);
      if constexpr (kParts == 1) __syncwarp();  // a warp has all keys of its queries
      else sync();
      exponentials(c);
      values(c, total, sync);
    }
    sync();  // everything in shared memory may be written again
  }

  // A thread's queries (or their exponentials) in one row.
  static __device__ __forceinline__ void load_queries(float (&q)[TQ], const float* from) {
    if constexpr (TQ == 3) {
      float x[4];
      load_vector<4>(x, from);
      q[0] = x[0], q[1] = x[1], q[2] = x[2];
    } else {
#pragma unroll
      for (int i = 0; i < TQ; i += 2) load_vector<2>(q + i, from + i);
    }
  }

  template <class Sync>
  __device__ __forceinline__ void scores(int c, Sync sync) {
    const int l = lane_ / 8, kg = lane_ % 8, part = warp_ % kParts, g = warp_ / kParts;
    const int key = (part * 8 + kg) * kWidth,
              at = ((key / 4) ^ swizzle(l)) * 4 + key % 4 + l * arith::kChunk;
    const float* query = queries_ + l * kPitch + g * kPlaces;
    float sum[TQ][kKeys][kWidth];
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
      for (int v = 0; v < kKeys; ++v)
#pragma unroll
        for (int x = 0; x < kWidth; ++x) sum[i][v][x] = 0.0f;
    const int dims = piece_ / arith::kChunk;
#pragma unroll 1
    for (int index = 0; index < key_pieces_; ++index) {
      const float* keys = land(c, index, sync) + at;
      const int rows = min(dims, d_ - index * dims) / arith::kScoreLanes;  // a multiple of 4
      float k[kRing][kKeys][kWidth], q[kRing][TQ];
      auto load = [&](int y, int ahead) {  // reads past the piece's end bring what nobody uses
#pragma unroll
        for (int v = 0; v < kKeys; ++v)
          load_vector<kWidth>(k[y][v], keys + ahead * 4 * arith::kChunk + v * arith::kChunk / 2);
        load_queries(q[y], query + ahead * 4 * kPitch);
      };
#pragma unroll
      for (int y = 0; y < kAhead; ++y) load(y, y);
#pragma unroll 1
      for (int row = 0; row < rows; row += kRing) {
#pragma unroll
        for (int y = 0; y < kRing; ++y) {
          load((y + kAhead) % kRing, y + kAhead);
#pragma unroll
          for (int i = 0; i < TQ; ++i)
#pragma unroll
            for (int v = 0; v < kKeys; ++v)
#pragma unroll
              for (int x = 0; x < kWidth; ++x)
                sum[i][v][x] = arith::fma32(q[y][i], k[y][v][x], sum[i][v][x]);
        }
        keys += kRing * 4 * arith::kChunk, query += kRing * 4 * kPitch;
      }
    }
    // (0+1)+(2+3) over the lanes; of a thread's keys each lane keeps its share.
    const bool odd = l & 1, high = l & 2;
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
      for (int v = 0; v < kKeys; ++v) {
        float* s = sum[i][v];
        float kept = s[0];
        if constexpr (kWidth >= 2) {
          const float sent = odd ? s[0] : s[1];
          kept = (odd ? s[1] : s[0]) + __shfl_xor_sync(kFull, sent, 8);
        } else {
          kept += __shfl_xor_sync(kFull, kept, 8);
        }
        if constexpr (kWidth == 4) {
          const float sent = odd ? s[2] : s[3];
          const float second = (odd ? s[3] : s[2]) + __shfl_xor_sync(kFull, sent, 8);
          kept = (high ? second : kept) + __shfl_xor_sync(kFull, high ? kept : second, 16);
        } else {
          kept += __shfl_xor_sync(kFull, kept, 16);
        }
        const bool mine = kWidth == 4 || (kWidth == 2 ? l / 2 == i % 2 : l == i % 4);
        if (mine)
          scores_[(key + v * arith::kChunk / 2 + l % kWidth) * kPitch + g * kPlaces + i] =
              kept * a_.scale;
      }
  }

  // Scores become exponentials; maximum and sum of the chunk, or of the span so far. A warp has the
  // queries warp, warp + 8, ...; the steps of all of them go together.
  __device__ __forceinline__ void exponentials(int c) {
    constexpr int kMine = (Q + 7) / 8;
    if (Q < 8 && warp_ >= Q) return;
    float e0[kMine], e1[kMine], best[kMine], sum[kMine];
    bool first_in[kMine], second_in[kMine];
    auto query = [&](int i) { return min(warp_ + 8 * i, Q - 1); };  // the last one twice
    float* scores = scores_ + lane_ * kPitch;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int count = count_of(query(i), c), at = place(query(i));
      first_in[i] = lane_ < count, second_in[i] = lane_ + 32 < count;
      e0[i] = scores[at], e1[i] = scores[32 * kPitch + at];
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
      const int at = place(query(i));
      scores[at] = e0[i], scores[32 * kPitch + at] = e1[i];
    }
#pragma unroll
    for (int n = 1; n < 32; n *= 2)
#pragma unroll
      for (int i = 0; i < kMine; ++i) sum[i] += __shfl_xor_sync(kFull, sum[i], n);
    float mx = best[0], s = sum[0];  // lane i takes the i-th query
#pragma unroll
    for (int i = 1; i < kMine; ++i)
      if (lane_ == i) mx = best[i], s = sum[i];
    const int q = warp_ + 8 * lane_;
    if (lane_ >= kMine || q >= Q || count_of(q, c) <= 0) return;
    float *maxima = maxima_ + q, *sums = maxima + Q;
    if (u_.whole && c != u_.begin) {
      const Merge f(*maxima, mx);
      maxima[2 * Q] = f.before, maxima[3 * Q] = f.after;
      mx = f.mx, s = arith::fma32(s, f.after, *sums * f.before);
    }
    *maxima = mx, *sums = s;
  }

  template <class Sync>
  __device__ __forceinline__ void values(int c, float (&total)[TQ][kDims][kWidth], Sync sync) {
    const int g = warp_ / kParts, dim = t_ % kThreads * kWidth;
    int at[kDims];  // a thread without dimensions works on others and writes nothing
#pragma unroll
    for (int v = 0; v < kDims; ++v) at[v] = min(dim + v * kThreads * kWidth, d_ - kWidth);
    float o[TQ][kDims][kWidth];
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
      for (int v = 0; v < kDims; ++v)
#pragma unroll
        for (int x = 0; x < kWidth; ++x) o[i][v][x] = 0.0f;
    // Later queries see no fewer keys: up to `fewest` every query sees them.
    const int fewest = count_of(0, c) & ~3, most = count_of(Q - 1, c);
    const float* scores = scores_ + g * kPlaces;
    int key = 0;
#pragma unroll 1
    for (int index = key_pieces_; index < piece_count_; ++index) {
      const float* piece = land(c, index, sync);
      const int end = key + piece_keys_, all = min(fewest, end), some = min(most, end);
      float x[kRing][kDims][kWidth], e[kRing][TQ];
      auto load = [&](int y, int ahead) {
#pragma unroll
        for (int v = 0; v < kDims; ++v) load_vector<kWidth>(x[y][v], piece + ahead * d_ + at[v]);
        load_queries(e[y], scores + (key + ahead) * kPitch);
      };
#pragma unroll
      for (int y = 0; y < kAhead; ++y) load(y, y);
#pragma unroll 1
      for (; key < all; key += kRing, piece += kRing * d_) {
#pragma unroll
        for (int y = 0; y < kRing; ++y) {
          load((y + kAhead) % kRing, y + kAhead);
#pragma unroll
          for (int i = 0; i < TQ; ++i)
#pragma unroll
            for (int v = 0; v < kDims; ++v)
#pragma unroll
              for (int w = 0; w < kWidth; ++w)
                o[i][v][w] = arith::fma32(e[y][i], x[y][v][w], o[i][v][w]);
        }
      }
#pragma unroll 1
      for (; key < some; ++key, piece += d_) {
        float y[kDims][kWidth], f[TQ];
#pragma unroll
        for (int v = 0; v < kDims; ++v) load_vector<kWidth>(y[v], piece + at[v]);
        load_queries(f, scores + key * kPitch);
#pragma unroll
        for (int i = 0; i < TQ; ++i) {
          const bool sees = key < count_of(i * G + g, c);
#pragma unroll
          for (int v = 0; v < kDims; ++v)
#pragma unroll
            for (int w = 0; w < kWidth; ++w)
              o[i][v][w] = sees ? arith::fma32(f[i], y[v][w], o[i][v][w]) : o[i][v][w];
        }
      }
      key = end;
    }
    const bool alone = !u_.whole, first = alone || c == u_.begin;
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
    if (alone || c + 1 == u_.end)
      write(alone ? split_.slot(c) : u_.begin / arith::kSpanChunks, alone ? c : u_.begin, total);
  }

  // A partial result of the queries that see chunk c.
  __device__ __forceinline__ void write(int slot, int c,
                                        const float (&o)[TQ][kDims][kWidth]) const {
    const int g = warp_ / kParts, dim = t_ % kThreads * kWidth, pitch = partial_pitch(d_),
              exist = a_.queries() - first_;
    float* to =
        a_.partial + (static_cast<size_t>(u_.head) * split_.slots() + slot) * Q * pitch + g * pitch;
#pragma unroll
    for (int i = 0; i < TQ; ++i, to += G * pitch) {
      const int q = i * G + g;
      if (q >= exist || count_of(q, c) <= 0) continue;
#pragma unroll
      for (int v = 0; v < kDims; ++v) {
        const int n = dim + v * kThreads * kWidth;
        if (n < d_) store_vector<kWidth>(to + n, o[i][v]);
      }
      if (dim == 0) to[d_] = maxima_[q], to[d_ + 1] = maxima_[Q + q];
    }
  }
};

}  // namespace vcuda::gpu
