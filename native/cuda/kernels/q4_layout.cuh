// Q4 weights in the order in which the projection kernels read them, and the kernel that packs
// them.
//
// A tile is 16 rows by one group of 32 inputs: 256 bytes of nibbles and 16 float16 scales, the A
// fragment of mma.sync.m16n8k32. A slab is `tiles` tiles of rows over all inputs; a cluster of
// `cluster` blocks walks it, and block `rank` owns the contract's lanes [rank*lanes(), ...). A
// superstep is one group of each lane, a stage what one block has of a superstep. A stage's tiles
// are in two halves, so that two warps can share a lane; a cell is the tiles of one half at one
// group. In memory: [slab][rank][superstep] stages of [half 2][lane] cells.
//
// Cell: tiles in pairs [thread 32][4 words: tile 0's two, tile 1's two], an odd last tile [thread
// 32][2 words]; then scales, tiles in fours [row 8][tile 4][row, row+8], the rest [row
// 8][tile][row, row+8]. Word 0 of thread 4r+t: low nibbles row r, high nibbles row r+8, inputs
// 4t..4t+3; word 1: inputs 16+4t... Nibbles are weight + 8; padding is weight 0, scale 0.
#pragma once

#include "arith/synth.h"
#include "kernels/common.cuh"

namespace vcuda::gpu {

constexpr int kTileBytes = 288;

struct Q4Shape {
  int rows, groups;
  int cluster;  // blocks that share a slab: 1 or 2
  int tiles;    // of a slab

  __host__ __device__ int lanes() const { return arith::kQ4Lanes / cluster; }  // of a block
  // Tiles of a half; the first one is even where there are two (16-byte loads).
  __host__ __device__ int half_tiles(int half) const {
    const int first = tiles < 2 ? tiles : (tiles + 1) / 4 * 2;
    return half == 0 ? first : tiles - first;
  }
  __host__ __device__ int slabs() const { return ((rows + 15) / 16 + tiles - 1) / tiles; }
  __host__ __device__ int supersteps() const {
    return (groups + arith::kQ4Lanes - 1) / arith::kQ4Lanes;
  }
  __host__ __device__ int stage_bytes() const { return lanes() * tiles * kTileBytes; }
  __host__ __device__ size_t stage(int slab, int rank, int superstep) const {  // its first byte
    return ((static_cast<size_t>(slab) * cluster + rank) * supersteps() + superstep) *
           stage_bytes();
  }
  __host__ __device__ int cell(int half, int lane) const {  // its first byte in the stage
    return (half * lanes() * half_tiles(0) + lane * half_tiles(half)) * kTileBytes;
  }
  __host__ __device__ size_t bytes() const { return stage(slabs(), 0, 0); }
};

// Where thread `lane` finds its two words and its two rows' scales of tile r of a cell.
struct TilePlace {
  int words, scales;
  __host__ __device__ TilePlace(int tiles, int r, int lane) {
    words = r < tiles / 2 * 2 ? r / 2 * 512 + lane * 16 + r % 2 * 8 : tiles / 2 * 512 + lane * 8;
    const int fours = tiles / 4 * 4, rest = tiles % 4;
    scales = tiles * 256 + (r < fours ? r / 4 * 128 + lane / 4 * 16 + r % 4 * 4
                                      : fours * 32 + (lane / 4 * rest + r - fours) * 4);
  }
};

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
  const int words = q.stage_bytes() / 4;
  const size_t stage = index / words;
  if (index >= q.bytes() / 4) return;
  const int superstep = static_cast<int>(stage % q.supersteps()),
            block = static_cast<int>(stage / q.supersteps()), rank = block % q.cluster,
            slab = block / q.cluster;
  int i = static_cast<int>(index % words);
  const int half = i >= q.cell(1, 0) / 4, tiles = q.half_tiles(half), cell_words = tiles * 72;
  i -= q.cell(half, 0) / 4;
  const int group =
      superstep * arith::kQ4Lanes + rank * q.lanes() + i / cell_words;  // its lane: i / cell_words
  const int tile0 = slab * q.tiles + half * q.half_tiles(0);
  const bool absent = group >= q.groups;
  i %= cell_words;

  int tile, thread, word;
  if (i < tiles * 64) {
    if (i < tiles / 2 * 128) {
      tile = i / 128 * 2 + i % 4 / 2, thread = i % 128 / 4, word = i % 2;
    } else {
      i -= tiles / 2 * 128;
      tile = tiles - 1, thread = i / 2, word = i % 2;
    }
    const int row = (tile0 + tile) * 16 + thread / 4, quad = word * 4 + thread % 4;
    const uint32_t low = absent ? 0x08080808u : q4_quad(all, row, q.groups, group, quad);
    const uint32_t high = absent ? 0x08080808u : q4_quad(all, row + 8, q.groups, group, quad);
    to[index] = low | high << 4;
    return;
  }
  i -= tiles * 64;
  int r;
  if (i < tiles / 4 * 32) {
    tile = i / 32 * 4 + i % 4, r = i % 32 / 4;
  } else {
    i -= tiles / 4 * 32;
    tile = tiles / 4 * 4 + i % (tiles % 4), r = i / (tiles % 4);
  }
  const int row = (tile0 + tile) * 16 + r;
  to[index] = absent ? 0
                     : q4_scale(all, row, q.groups, group) | q4_scale(all, row + 8, q.groups, group)
                                                                 << 16;
}

}  // namespace vcuda::gpu
