// A projection by the engine of ring.cuh: what it is, and the layout of a block's shared memory.
#pragma once

#include <algorithm>

#include "kernels/q4_tile.cuh"
#include "kernels/norm_row.cuh"

namespace vcuda::gpu {

constexpr int kConsumers = arith::kQ4Lanes / 2;  // a lane each
constexpr int kReducers = 3, kRingThreads = (kConsumers + 1 + kReducers) * 32;
// Weights. With few rows a ring takes all memory but for a norm's block beside it, so that weights
// come while nothing can be multiplied yet; with many the arithmetic is the limit and such rings
// are slower: so many bytes, or four stages. What the predecessor wrote waits behind the weights
// that are on their way, so these are few (RingProducer).
constexpr int kFlightBytes = 52 << 10, kBesideBytes = 22 << 10, kRingBytes = 70 << 10;
constexpr int kStages = 16;                         // of a ring at most
constexpr int kAheadBytes = 32 << 10;               // of the next projection, a block
constexpr int kMostTiles = 12;                      // of a slab
constexpr int kOwned = kMostTiles / 2 / kReducers;  // tiles that one reducer writes
// Of a slab's tiles the blocks of a cluster write every other one: the first so many.
__host__ __device__ __forceinline__ constexpr int owned_tiles(int tiles) { return (tiles + 1) / 2; }
// Of a norm that the projection makes itself (ring_norm.cuh): teams of threads; rows and supersteps
// at most.
constexpr int kNormTeams = kConsumers * 32 / kNormThreads;
constexpr int kNormedRows = 2, kNormedSupersteps = 10;

// Float32 rows over the same inputs; rows 0: none.
struct FloatRows {
  const float* w;  // [rows, cols]
  const float* x;  // [m, cols]
  float* y;        // [m, ld of the projection]
  int rows, cols;
};

// The 27B's projections behind a norm, which may have float32 rows or be gates and ups, have as
// many tiles; those behind other operations fewer, and are better with fewer registers.
template <int R>
constexpr bool kBehindNorm = R >= 7;
// Whether a kernel has the code of the norm.
template <int R, Form F>
constexpr bool kTakesNorm = kBehindNorm<R>&& F == Form::kPairs;

// Rows that are not normalized yet (norm_row.cuh).
struct NormInput {
  const float *x, *w;  // [m, cols], [cols]
  float eps;
};

// What becomes of gates and ups (Q4Shape::gated). x and act may be NULL together, then nothing
// does; Output::y may be NULL too.
struct GatedRows {
  float* x;      // [m, rows / 2]: silu(gate) * up
  uint8_t* act;  // the same quantized, one block of m rows
  // Units that clusters share: their tiles' lane sums, [unit][tile 4][lane 32], room for float4;
  // and how many have come, 0 before and behind a launch.
  float4* sums;
  int* arrived;
};

// What the next projection's blocks ask for first, of as many blocks; 0: nothing.
struct NextWeights {
  const uint8_t* from;
  uint32_t blocks, stride, bytes;  // of a block: to the next one's, how many
};

struct Projection {
  const uint8_t* weights;
  Q4Shape q;
  const uint8_t* act;  // one block of out.m rows
  NormInput norm;      // x not NULL: instead of act, which the blocks make of it
  Output out;
  FloatRows floats;  // x is norm's where that is given
  GatedRows gated;
  NextWeights next;
};

struct RingBarriers {
  uint64_t full[kStages], empty[kStages], exchange[2], sums, taken;
  // Of a norm: the rows have come, their factors are known; each team's two sums; the factors.
  uint64_t rows, factored;
  float norm_sums[kNormTeams][2], factors[kNormedRows];
  uint64_t landed[kStages];  // of the first round, the weights alone, where full waits for more
};

// Shared memory, in this order: barriers, lane sums, exchange, units begun, activations that stay,
// ring. A stage of the ring is a superstep's cells and, where they do not stay, its activations.
// They stay where the block makes them itself: of rows that lie where the lane sums will be.
struct RingPlan {
  int sums, exchange, inbox;     // offsets; bytes of one of the two inboxes
  int kept;                      // offset; of units that go on in the next slab: [2][tile 4][lane]
  int staying;                   // offset, superstep by superstep; 0: they come with their stages
  int superstep;                 // bytes of a superstep's activations
  int ring, act, stage, stages;  // offset; the activations' in a stage; bytes of a stage; how many
  int flight;                    // stages of weights that may be on their way (RingProducer)
  int bytes;
  // What would be divisions in every block: slabs of every cluster, clusters that have one more,
  // supersteps of a slab.
  int slabs_each, slabs_more, supersteps;

  // For a projection of m rows by so many clusters; limit: of shared memory.
  RingPlan(const Q4Shape& q, int m, int clusters, int limit, bool stay) {
    const bool few = few_rows(m);
    const int tiles = q.tiles, tile = few ? 256 : 512;
    supersteps = q.supersteps();
    slabs_each = q.slabs() / clusters, slabs_more = q.slabs() % clusters;
    sums = (static_cast<int>(sizeof(RingBarriers)) + 127) / 128 * 128;
    const int lane_sums = kConsumers * tile_sums(tiles, form_of(m)) * tile,
              rows = stay ? row_bytes(q, m) : 0;
    exchange = sums + (rows > lane_sums ? rows : lane_sums);
    inbox = 2 * (q.gated ? tiles : owned_tiles(tiles)) * tile;
    kept = exchange + 2 * inbox;
    ring = kept + (q.gated ? 2 * 4 * tile : 0);
    act = kConsumers * tiles * kTileBytes;
    superstep = kConsumers * act_stride(m);
    staying = stay ? ring : 0;
    if (stay) ring += (supersteps * superstep + 127) / 128 * 128;
    stage = act + (stay ? 0 : (superstep + 127) / 128 * 128);
    const int room = (limit - ring - (few && !stay ? kBesideBytes : 0)) / stage;
    stages = std::min({few ? kStages : std::max(4, kRingBytes / act), room, kStages});
    flight = std::min(std::max(few ? 2 : 3, kFlightBytes / act), stages);
    bytes = ring + stages * stage;
  }
  bool fits() const { return stages >= 2; }
  __host__ __device__ static int row_bytes(const Q4Shape& q, int m) {
    return m * q.groups * arith::kGroup * static_cast<int>(sizeof(float));
  }
};

}  // namespace vcuda::gpu
