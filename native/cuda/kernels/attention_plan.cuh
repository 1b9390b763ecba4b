// Full attention of up to 8 rows: what is worked on, in which pieces, and where partial results
// lie.
//
// Cache per layer, as on the CPU: keys [Hkv][chunks][D][64], values [Hkv][chunks*64][D]. A unit of
// work is one key head, a group of its queries (rows x query heads of the key head, row-major) and
// a run of chunks. A run that is a whole span merges its chunks itself and leaves one partial
// result; any other run leaves one for each chunk. The contract's order (chunks inside a span,
// then spans) makes every division the same bits. Which one is taken follows from the position in
// device memory, so that a captured graph serves every position.
#pragma once

#include "kernels/common.cuh"

namespace vcuda::gpu {

constexpr int kAttentionThreads = 256;
constexpr int kAttentionRows = 8;    // of one launch at most
constexpr int kAttentionTiles = 5;   // tile i works on 3 << i queries at a time
constexpr int kAttentionPieces = 8;  // pieces of keys and values in flight in shared memory
constexpr int kSharedFloats = 64;    // of AttentionShared

__host__ __device__ constexpr int tile_queries(int tile) { return 3 << tile; }
// Floats from one dimension's queries, or one key's scores, to the next: aligned for the loads, and
// four rows apart in the banks.
__host__ __device__ constexpr int tile_pitch(int tile) {
  return tile == 0 ? 4 : tile == 1 ? 10 : tile_queries(tile) + 2;
}

// A piece is a slice of one chunk, either of its keys (piece / 64 dimensions of 64 keys) or of its
// values (keys of D dimensions).
struct AttentionRoom {
  int most_tile;  // the largest tile that fits, -1: none
  int piece;      // floats
  int keys;       // of a piece of values
};

struct AttentionArgs {
  const float* in;  // [rows, ld] of this launch: per query head D query, D gate | k | v
  const float *q_norm, *k_norm, *inv_freq;
  float *keys, *values;
  size_t head_floats;  // keys (or values) of one head
  float* partial;      // attention_partial_floats; nothing is expected to be in it
  // Tickets taken, then of each (key head, group) the units done; all zero between launches.
  unsigned* counters;
  float* out;  // [m, Hq*D]
  uint8_t* act;
  int rows, row0, m;  // this launch's rows [row0, row0 + rows) of the step's m
  int ld, q_heads, kv_heads, per_kv, d, half;
  int tile;    // -1: the cheapest
  bool early;  // a projection is in front: see kernel_attention
  AttentionRoom room;
  float eps, scale;

  __host__ __device__ int queries() const { return rows * per_kv; }
  __host__ __device__ int ld_out() const { return q_heads * d; }
};

// Shared memory in floats: AttentionShared; pieces; queries [D][pitch], scores [64][pitch]; new
// keys and values [2][rows][D]; sines and cosines [rows][rotary]; of each query maximum, sum, two
// factors and the keys it sees.
__host__ __device__ constexpr int attention_head_floats(int tile, int d, int rows) {
  return kSharedFloats + (d + arith::kChunk) * tile_pitch(tile) + 3 * rows * d +
         8 * tile_queries(tile);
}

// The smallest tile for n queries, or `limit`.
__host__ __device__ inline int attention_most_tile(int n, int limit) {
  int tile = 0;
  while (tile < limit && tile_queries(tile) < n) ++tile;
  return tile;
}

__host__ __device__ inline AttentionRoom attention_room(int bytes, int d, int rows, int most_tile) {
  for (int tile = most_tile; tile >= 0; --tile)
    for (int piece = 4096; piece >= 1024 && piece >= 4 * d; piece /= 2) {
      const int head = attention_head_floats(tile, d, rows);
      if ((head + kAttentionPieces * piece) * 4 > bytes) continue;
      int keys = arith::kChunk;
      while (keys * d > piece) keys /= 2;
      return {tile, piece, keys};
    }
  return {-1, 0, 0};
}

__host__ __device__ inline int attention_shared_bytes(const AttentionRoom& room, int d, int rows) {
  return 4 * (attention_head_floats(room.most_tile, d, rows) + kAttentionPieces * room.piece);
}

// The units of every (key head, group): spans [0, whole), then runs of `length` chunks.
struct AttentionSplit {
  int tile, groups, chunks, whole, length, runs;
  unsigned cost;  // of the block that has most to do

  AttentionSplit() = default;
  // `visible` keys of the last row, n queries a key head, `grid` blocks.
  __host__ __device__ AttentionSplit(int which, int visible, int n, int kv_heads, int grid) {
    tile = which;
    const int q = tile_queries(tile);
    groups = ceil_div(n, q), chunks = ceil_div(visible, arith::kChunk);
    const int spans = ceil_div(chunks, arith::kSpanChunks), each = kv_heads * groups,
              waves = each * spans / grid, left = each * spans - waves * grid;
    // A last wave of spans is worth it where it fills the grid; where memory is the limit (few
    // queries), half a grid draws as much as a whole one.
    whole = left >= (q <= 12 ? grid / 2 : grid * 3 / 4) ? spans : waves * grid / each;
    const int rest = rest_chunks();
    length = ceil_div(rest * each, grid);
    runs = rest ? ceil_div(rest, length) : 0;
    const int most = chunks < arith::kSpanChunks ? chunks : arith::kSpanChunks;
    cost = static_cast<unsigned>(ceil_div(each * whole, grid) * most + length) *
           static_cast<unsigned>(q + 8);
  }
  __host__ __device__ int rest_chunks() const {
    return chunks > whole * arith::kSpanChunks ? chunks - whole * arith::kSpanChunks : 0;
  }
  __host__ __device__ int units() const { return whole + runs; }
  __host__ __device__ int slots() const { return whole + rest_chunks(); }
  // The slot of a chunk of a run; span s has slot s.
  __host__ __device__ int slot(int chunk) const {
    return whole + chunk - whole * arith::kSpanChunks;
  }
};

__host__ __device__ constexpr int partial_pitch(int d) { return d + 4; }  // o, maximum, sum

// Partial results lie as [Hkv * groups][slots][Q][D + 4]. The most that any position up to
// `context` needs.
inline size_t attention_partial_floats(int context, int rows, int q_heads, int kv_heads, int d,
                                       int most_tile, int grid) {
  size_t most = 0;
  for (int visible = rows; visible <= context + arith::kChunk; visible += arith::kChunk)
    for (int tile = 0; tile <= most_tile; ++tile) {
      const AttentionSplit s(tile, visible < context ? visible : context,
                             rows * (q_heads / kv_heads), kv_heads, grid);
      const size_t floats = static_cast<size_t>(kv_heads) * s.groups * s.slots() *
                            tile_queries(tile) * partial_pitch(d);
      most = floats > most ? floats : most;
    }
  return most;
}

// 64 threads have 64 dimensions of one query (an item). Partial results of a query's spans are
// independent until they are merged in order: where there are few queries four such parts of a
// block share an item's spans, and else each has an item of its own.
constexpr int kItemDims = 64, kItemParts = kAttentionThreads / kItemDims;

struct MergePlan {
  int slices, share;  // items of a query; parts that share one
  int passes;         // of a (key head, group)
  MergePlan() = default;
  __host__ __device__ MergePlan(const AttentionArgs& a, const AttentionSplit& s, int grid) {
    slices = ceil_div(a.d, kItemDims);
    const int items = tile_queries(s.tile) * slices;
    passes = ceil_div(items, kItemParts), share = 1;
    if (passes * a.kv_heads * s.groups < grid / 2) passes = items, share = kItemParts;
  }
};

inline size_t attention_counters(int q_heads, int kv_heads) {
  return 1 + static_cast<size_t>(kv_heads) *
                 ceil_div(kAttentionRows * (q_heads / kv_heads), tile_queries(0));
}

#if defined(__CUDACC__)
// The cheapest split; whole warps.
__device__ __forceinline__ AttentionSplit attention_split(const AttentionArgs& a, int position,
                                                          int grid) {
  const int lane = threadIdx.x % 32;
  AttentionSplit s(min(lane, a.room.most_tile), position + a.rows, a.queries(), a.kv_heads, grid);
  const unsigned key = min(s.cost, 0x0fffffffu) << 3 | static_cast<unsigned>(s.tile);
  const int best = a.tile >= 0 ? a.tile : static_cast<int>(__reduce_min_sync(kFull, key) & 7u);
  s.tile = best;
  s.groups = __shfl_sync(kFull, s.groups, best), s.whole = __shfl_sync(kFull, s.whole, best);
  s.length = __shfl_sync(kFull, s.length, best), s.runs = __shfl_sync(kFull, s.runs, best);
  return s;
}
#endif

}  // namespace vcuda::gpu
