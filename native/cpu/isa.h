// The CPU operations, compiled once per instruction set from kernels.inc; each table gives the same
// bits.
//
// The translation units of the instruction sets see plain pointers only and no standard library
// template: a function that the linker merges between units could otherwise be the AVX-512 copy on
// a machine without it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vcuda {

// One group of 32 activations of one row (arith/quant.h). Act is [groups][m] of these.
struct ActGroup {
  int8_t digit[3][32];  // most significant first
  float scale;          // 2^(e-21), NaN when the group is not finite
  int32_t bias;         // -8 * sum of q: weights are stored as 0..15
};

// Q4 weights: tiles of 16 rows (the last one padded with weight 0, scale 0). A tile is
// [groups][4][64] bytes, then [groups][16] float16 scales; its groups stand in the order of the
// lanes: 0, 16, 32, ..., 1, 17, ... Of one group, byte 4r+b of 64-byte vector v holds row r's
// inputs 8v+b (low nibble) and 8v+4+b (high nibble), as weight + 8.
constexpr int kTileRows = 16;
constexpr size_t tile_bytes(int groups) {
  return static_cast<size_t>(groups) * (256 + 2 * kTileRows);
}

struct GdnHead {           // one value head, all rows
  const float *q, *k, *v;  // row i at + i*ld
  const float* z;          // row i at + i*ld_in
  size_t ld, ld_in, ld_out;
  const float *b, *a;  // [1], row i at + i*ld_in
  float a_neg, dt_bias, eps;
  const float* norm;    // [dv]
  const float* s_from;  // [dk, dv]
  float* s_to;
  float* out;  // [dv], row i at + i*ld_out
  int m, dk, dv;
};

struct AttentionHead {  // the query heads of one key head, one row
  const float* q;       // r query heads, each D values; head j at + j*ld_q
  const float* gate;    // likewise
  size_t ld_q;
  const float* keys;    // [chunks][D][64]: keys of a chunk are neighbours
  const float* values;  // [context][D]
  float* out;           // r heads of D
  int r, d, visible;    // visible: keys this row sees, >= 1
  float scale;          // float32(1/sqrt(D))
};

struct Isa {
  const char* name;
  // act row `row` of m from x [32*groups], groups [begin, end)
  void (*quantize)(const float* x, int begin, int end, int row, int m, ActGroup* act);
  // rows of tiles [begin, end): y[i*ld + row] = or += W x; rows: valid rows of the matrix
  void (*project_q4)(const uint8_t* tiles, int groups, int begin, int end, int rows,
                     const ActGroup* act, int m, float* y, size_t ld, bool add);
  // rows [begin, end) of w [rows, cols]
  void (*project_float)(const float* w, int cols, int begin, int end, const float* x, size_t ld_x,
                        int m, float* y, size_t ld, bool add);
  void (*rms_norm)(const float* x, const float* w, int n, float eps, float* y);  // kNormLanes
  void (*head_norm)(const float* x, const float* w, int n, float eps,
                    float* y);  // kHeadNormLanes; y may be x
  void (*l2_norm)(float* x, int n, float factor,
                  bool scaled);  // in place; times factor when scaled
  // y[c] = silu(sum over taps of w[j*ld_w + c] * in[j][c]), c in [0, n)
  void (*conv_silu)(const float* const* in, const float* w, size_t ld_w, int taps, int n, float* y);
  void (*gdn_head)(const GdnHead&);
  void (*attention_head)(const AttentionHead&);
  void (*swiglu)(const float* gate, const float* up, int n, float* out);
};

extern const Isa kPortable;
#if defined(__x86_64__)
extern const Isa kAvx2, kAvx512;
#endif

// The best this processor runs, or the one that VLLM_CUDA_CPU_ISA names; VCUDA_E_UNSUPPORTED when
// it cannot run here.
const Isa& choose_isa();

}  // namespace vcuda
