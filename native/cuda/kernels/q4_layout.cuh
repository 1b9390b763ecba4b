// Q4 weights in the order in which the projection kernel reads them, and the kernel that packs
// them.
//
// A tile is 16 rows by one group of 32 inputs: 256 bytes of nibbles and 16 float16 scales, the A
// fragment of mma.sync.m16n8k32. A cell is what one warp does in one superstep (16 groups, one of
// each of the contract's lanes): `tiles` tiles of consecutive rows at one group. A slab is these
// rows over all inputs; a cluster of `cluster` blocks walks it, and warp w of block `rank` has the
// lane rank * warps + w. In memory: [slab][rank][superstep][warp] cells.
//
// Gates and ups (Q4Shape::gated): four tiles are a unit, what silu(gate) * up of a group of 32
// takes: gates 4k, 4k+1 (rows k, k+8 of the tile), gates 4k+2, 4k+3, then the ups. GatedCluster
// says which tiles a cluster's slabs hold.
//
// Cell: tiles in pairs [lane 32][4 words: tile 0's two, tile 1's two], an odd last tile [lane 32][2
// words]; then scales, tiles in fours [row 8][tile 4][row, row+8], the rest [row 8][tile][row,
// row+8]. Word 0 of thread 4r+t: low nibbles row r, high nibbles row r+8, inputs 4t..4t+3; word 1:
// inputs 16+4t... Nibbles are weight + 8; padding is weight 0, scale 0.
#pragma once

#include "arith/synth.h"
#include "kernels/common.cuh"

namespace vcuda::gpu {

constexpr int kTileBytes = 288;

struct GatedCluster;

struct Q4Shape {
  int rows, groups;
  int cluster;  // blocks that share a slab: 1 or 2
  int tiles;    // of a cell, and so of a slab
  int gated;    // clusters of the grid, where the rows are gates, then ups; else 0

  __host__ __device__ int warps() const { return arith::kQ4Lanes / cluster; }  // of a block
  __host__ __device__ int slabs() const { return ((rows + 15) / 16 + tiles - 1) / tiles; }
  __host__ __device__ int supersteps() const {
    return (groups + arith::kQ4Lanes - 1) / arith::kQ4Lanes;
  }
  __host__ __device__ int cell_bytes() const { return tiles * kTileBytes; }
  __host__ __device__ size_t cell(int slab, int rank, int superstep, int warp) const {
    return ((static_cast<size_t>(slab) * cluster + rank) * supersteps() + superstep) * warps() +
           warp;
  }
  __host__ __device__ size_t bytes() const { return cell(slabs(), 0, 0, 0) * cell_bytes(); }
  __host__ __device__ GatedCluster gated_cluster(int cluster) const;
  __host__ __device__ int row(int slab, int tile, int r) const;  // `rows` or more: none
};

// The tiles of one cluster's slabs, one after the other: first those that units of their own leave
// over, tiles of units which clusters share; then its own units. No slab is larger for it than it
// would be without units, and what clusters share comes early.
struct GatedCluster {
  int spare, loose;   // tiles of shared units; those of the clusters before
  int first, shared;  // its first unit, the first shared one

  // each, more: slabs of every cluster, clusters that have one more; tiles: of a slab.
  __host__ __device__ __forceinline__ GatedCluster(int cluster, int clusters, int each, int more,
                                                   int tiles) {
    const int few = each * tiles, many = few + tiles, before = cluster < more ? cluster : more,
              rest = cluster - before;
    spare = (cluster < more ? many : few) % 4;
    loose = before * (many % 4) + rest * (few % 4);
    first = before * (many / 4) + rest * (few / 4);
    shared = more * (many / 4) + (clusters - more) * (few / 4);
  }
  // The i-th tile as 4 * unit + its place there. Past the last unit's: none.
  __host__ __device__ __forceinline__ int tile(int i) const {
    return i < spare ? 4 * shared + loose + i : 4 * first + i - spare;
  }
};

__host__ __device__ inline GatedCluster Q4Shape::gated_cluster(int cluster) const {
  return {cluster, gated, slabs() / gated, slabs() % gated, tiles};
}

__host__ __device__ inline int Q4Shape::row(int slab, int tile, int r) const {
  if (!gated) return (slab * tiles + tile) * 16 + r;
  const int i = gated_cluster(slab % gated).tile(slab / gated * tiles + tile), place = i % 4;
  if (i * 16 >= rows) return rows;
  return place / 2 * (rows / 2) + i / 4 * arith::kGroup + r % 8 * 4 + place % 2 * 2 + r / 8;
}

struct Q4Source {          // one of the stacked tensors
  const uint8_t* nibbles;  // device copy of the caller's bytes, or NULL: made from the stream
  const uint16_t* scales;
  arith::SynthStream stream;
  float scale;
  int row0, row_end;  // rows of the stack
};

struct Q4Sources {
  Q4Source source[4];
  int count;
};

__device__ __forceinline__ const Q4Source* q4_source(const Q4Sources& all, int row) {
  for (int i = 0; i < all.count; ++i)
    if (row < all.source[i].row_end) return &all.source[i];
  return nullptr;
}

// Four nibbles, inputs 4*quad.. of the group, as bytes.
__device__ __forceinline__ uint32_t q4_quad(const Q4Sources& all, int row, int groups, int group,
                                            int quad) {
  const Q4Source* s = q4_source(all, row);
  if (!s) return 0x08080808u;
  const size_t at = static_cast<size_t>(row - s->row0) * groups + group;  // group of the tensor
  uint32_t four;
  if (s->nibbles) {
    const uint8_t* p = s->nibbles + at * 16 + quad * 2;
    four = p[0] | static_cast<uint32_t>(p[1]) << 8;
  } else {
    four = static_cast<uint32_t>(s->stream.word(2 * at + quad / 4) >> (16 * (quad % 4))) & 0xffffu;
  }
  return (four & 15u) | (four & 0xf0u) << 4 | (four & 0xf00u) << 8 | (four & 0xf000u) << 12;
}

__device__ __forceinline__ uint32_t q4_scale(const Q4Sources& all, int row, int groups, int group) {
  const Q4Source* s = q4_source(all, row);
  if (!s) return 0;
  const size_t at = static_cast<size_t>(row - s->row0) * groups + group;
  return s->nibbles ? s->scales[at] : arith::synth_scale(s->stream, at, s->scale);
}

// A thread a word of the packed matrix.
static __global__ void __launch_bounds__(256)
    kernel_pack_q4(Q4Sources all, Q4Shape q, uint32_t* to) {
  const size_t index = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int words = q.cell_bytes() / 4;
  const size_t cell = index / words;
  if (cell >= q.cell(q.slabs(), 0, 0, 0)) return;
  const int warp = static_cast<int>(cell % q.warps()),
            superstep = static_cast<int>(cell / q.warps() % q.supersteps());
  const int block = static_cast<int>(cell / q.warps() / q.supersteps()), rank = block % q.cluster,
            slab = block / q.cluster;
  const int lane = rank * q.warps() + warp, group = superstep * arith::kQ4Lanes + lane;

  int i = static_cast<int>(index % words), tile, thread, word;
  if (i < q.tiles * 64) {
    if (i < q.tiles / 2 * 128) {
      tile = i / 128 * 2 + i % 4 / 2, thread = i % 128 / 4, word = i % 2;
    } else {
      i -= q.tiles / 2 * 128;
      tile = q.tiles - 1, thread = i / 2, word = i % 2;
    }
    const int r = thread / 4, quad = word * 4 + thread % 4;
    auto nibbles = [&](int row) {
      return group >= q.groups ? 0x08080808u : q4_quad(all, row, q.groups, group, quad);
    };
    const uint32_t low = nibbles(q.row(slab, tile, r)), high = nibbles(q.row(slab, tile, r + 8));
    to[index] = low | high << 4;
    return;
  }
  i -= q.tiles * 64;
  int r;
  if (i < q.tiles / 4 * 32) {
    tile = i / 32 * 4 + i % 4, r = i % 32 / 4;
  } else {
    i -= q.tiles / 4 * 32;
    tile = q.tiles / 4 * 4 + i % (q.tiles % 4), r = i / (q.tiles % 4);
  }
  auto scale = [&](int row) { return group >= q.groups ? 0 : q4_scale(all, row, q.groups, group); };
  to[index] = scale(q.row(slab, tile, r)) | scale(q.row(slab, tile, r + 8)) << 16;
}

}  // namespace vcuda::gpu
