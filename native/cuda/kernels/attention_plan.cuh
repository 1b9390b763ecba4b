// Full attention of m rows: what is worked on, in which pieces, and where partial results lie.
//
// Cache per layer, as on the CPU: keys [Hkv][chunks][D][64], values [Hkv][chunks*64][D]. Which work
// a block does follows from the position in device memory, so that a captured graph serves every
// position: few keys are split into runs of chunks that leave a partial result each, many into
// spans (16 chunks, merged in the block): the contract's order makes both the same bits.
#pragma once

#include "arith/exp.h"
#include "kernels/common.cuh"

namespace vcuda::gpu {

constexpr int kAttentionThreads = 256;
constexpr int kAttentionPieces = 4;       // of keys and values in shared memory
constexpr int kAttentionPiece = 8192;     // floats of a piece at most
constexpr int kAttentionScorePitch = 68;  // floats from a query's scores to the next one's
constexpr int kMostChunkUnits = 128;      // more chunks than this are worked on by span

// A piece is a slice of one chunk, either of its keys (piece / 64 dimensions of 64 keys) or of its
// values (keys of D dimensions).
struct AttentionRoom {
  int piece;       // floats, a multiple of 1024
  int keys;        // of a piece of values, a multiple of 4
  int key_pieces;  // of a chunk
};

struct AttentionArgs {
  float* in;  // [m, ld]: per query head D query, D gate | k | v
  const float *q_norm, *k_norm, *inv_freq;
  float *keys, *values;
  size_t head_floats;  // keys (or values) of one head
  float* partial;      // [Hkv][m * r][units][D + 4]: o, maximum, sum
  int units;           // room in partial
  float* out;          // [m, Hq*D]
  uint8_t* act;
  int m, ld, q_heads, kv_heads, d, half;
  float eps, scale;
  AttentionRoom room;
  bool behind_projection;  // the launch before: see kernel_attention_prepare

  __host__ __device__ int per_kv() const { return q_heads / kv_heads; }
  __host__ __device__ int ld_out() const { return q_heads * d; }
};

__host__ __device__ constexpr int partial_pitch(int d) { return d + 4; }

// A unit is what has a partial result: a chunk or a span; row i sees position + i + 1 keys.
struct AttentionUnits {
  int chunks;  // of the last row
  bool spans;
  __host__ __device__ explicit AttentionUnits(int visible) {
    chunks = ceil_div(visible, arith::kChunk);
    spans = chunks > kMostChunkUnits;
  }
  __host__ __device__ int chunks_of_unit() const { return spans ? arith::kSpanChunks : 1; }
};

inline int attention_units(int context) {
  const int chunks = ceil_div(context, arith::kChunk), spans = ceil_div(chunks, arith::kSpanChunks);
  return chunks < kMostChunkUnits ? chunks : spans > kMostChunkUnits ? spans : kMostChunkUnits;
}

// A task is a run of chunks, for each of `each` pairs of key head and group of queries: a span, or
// as many chunks as let the blocks end together. Up to half a round more than there are blocks
// stays at one chunk: the last runs have few keys.
struct AttentionWork : AttentionUnits {
  int length, runs;
  __device__ AttentionWork(int visible, int each, int blocks) : AttentionUnits(visible) {
    const int tasks = chunks * each;
    length = spans ? arith::kSpanChunks : 2 * tasks <= 3 * blocks ? 1 : ceil_div(tasks, blocks);
    runs = ceil_div(chunks, length);
  }
};

// Floats from one lane's dimensions of a query to the next lane's: the pad spreads the lanes over
// the banks.
__host__ __device__ constexpr int query_pitch(int v) { return 64 * v + 4; }

// Shared memory of a block in floats: pieces; queries [Q][4][pitch]; scores [Q][68]; of each query
// maximum, sum, two factors and the keys it sees.
__host__ __device__ constexpr int attention_shared_floats(int q, int v, int piece) {
  return kAttentionPieces * piece + q * (4 * query_pitch(v) + kAttentionScorePitch + 5);
}

// The largest pieces for Q queries of D <= 256 * v dimensions in so many bytes, if any.
inline bool attention_room(int q, int v, int d, int bytes, AttentionRoom& room) {
  for (int piece = kAttentionPiece; piece >= 1024 && piece >= 4 * d; piece /= 2) {
    if (attention_shared_floats(q, v, piece) * 4 > bytes) continue;
    room = {piece, arith::kChunk, ceil_div(d * arith::kChunk, piece)};
    while (room.keys * d > piece) room.keys /= 2;
    return true;
  }
  return false;
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

}  // namespace vcuda::gpu
