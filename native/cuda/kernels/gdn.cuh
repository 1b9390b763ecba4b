// Gated DeltaNet core: convolution, l2 norms, the delta rule for all rows, gated norm.
//
// A value head is one block's work, or that of the two blocks of a cluster: each has half of S's
// columns, makes all keys and queries for itself, and gets the other half's outputs, which the
// norm's sum needs, through the other block's shared memory. S is read once and written once,
// whatever m is, and stays in registers: eight threads share a column, thread l of them has the
// rows l, l + 8, ..., which are the contract's lanes. Other sizes: gdn_any.cuh.
//
// Nothing of the state and of the weights waits for the operation in front: it is asked for before
// that one has ended.
#pragma once

#include "arith/activations.h"
#include "kernels/act.cuh"
#include "kernels/mbarrier.cuh"

namespace vcuda::gpu {

struct GdnArgs {
  const float* in;    // [m, ld_in]: u | z | b | a
  const float* conv;  // [taps, conv_dim]
  const float *a_neg, *dt_bias, *norm;
  size_t s_offset, conv_offset;  // of this layer, in floats
  float* out;                    // [m, value_dim]
  uint8_t* act;
  int m, row0;  // rows of the batch; where S is in registers, the first of the launch's eight
  int ld_in, k_heads, v_heads, repeat, dk, dv, taps;  // repeat: value heads of a key head
  float q_factor, eps;

  __host__ __device__ int key_dim() const { return k_heads * dk; }
  __host__ __device__ int value_dim() const { return v_heads * dv; }
  __host__ __device__ int conv_dim() const { return 2 * key_dim() + value_dim(); }
};

// Index of S[i, n] inside a head: [dk / 32][dv][8 lanes][4 rows], or [dk][dv] where it is not kept
// in registers.
inline int gdn_index(bool in_registers, int i, int n, int dv) {
  if (!in_registers) return i * dv + n;
  const int l = i % 8, j = i / 8;
  return ((j / 4 * dv + n) * 8 + l) * 4 + j % 4;
}

// The adjacency tree over the 8 lanes of a column, which are Stride threads apart.
template <int Stride>
__device__ __forceinline__ float gdn_tree(float x) {
  x += __shfl_xor_sync(kFull, x, Stride);
  x += __shfl_xor_sync(kFull, x, 2 * Stride);
  return x + __shfl_xor_sync(kFull, x, 4 * Stride);
}

// One block's shared memory for heads of 8 J by 8 J, Split blocks a head.
template <int J, int Split>
struct __align__(16) GdnShared {
  // Row 8 j + l of S meets [l * kLane + j]: float4 for a lane's rows, the pad spreads the lanes
  // over the banks.
  static constexpr int kLane = J + 4;
  float keys[kRowBlock][8 * kLane], queries[kRowBlock][8 * kLane];
  float values[kRowBlock][8 * J / Split];
  float4 outputs[kRowBlock / 4][8 * J];  // of all columns, four rows together
  float2 scalars[kRowBlock];             // beta, decay
};

// The blocks of one head as one of them sees them. They exchange the outputs of up to eight rows,
// in fours of a column: as few messages as can be, since a barrier takes one at a time. kCopies
// threads of a column give its fours, each one of them to one block.
template <int Split>
struct GdnPeer {
  static constexpr int rank = 0;
  __device__ __forceinline__ void meet() const {}
  __device__ __forceinline__ void expect(int) const {}
  static constexpr int kCopies = kRowBlock / 4;
  __device__ __forceinline__ static int four_of(int copy) { return copy; }
  __device__ __forceinline__ void give(float4* place, const float (&o)[4], int, bool real) const {
    if (real) *place = make_float4(o[0], o[1], o[2], o[3]);
  }
  __device__ __forceinline__ void wait() const { __syncthreads(); }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
template <>
struct GdnPeer<2> {
  uint64_t* arrived;  // in shared memory
  int rank;

  __device__ __forceinline__ explicit GdnPeer(uint64_t* barrier)
      : arrived(barrier), rank(static_cast<int>(blockIdx.x) % 2) {
    if (threadIdx.x == 0) {
      barrier_init(arrived, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");  // init has its fence
  }
  // Both blocks have their barrier.
  __device__ __forceinline__ void meet() const {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
  __device__ __forceinline__ void expect(int floats) const {  // by one thread, of both blocks
    barrier_expect(arrived, static_cast<uint32_t>(floats * 4));
  }
  static constexpr int kCopies = 2 * kRowBlock / 4;
  __device__ __forceinline__ static int four_of(int copy) { return copy / 2; }
  __device__ __forceinline__ void give(float4* place, const float (&o)[4], int copy,
                                       bool real) const {
    if (real)
      send(place, arrived, copy % 2 == 0 ? rank : 1 - rank, make_float4(o[0], o[1], o[2], o[3]));
  }
  // Until all outputs are here, and with them every warp of this block is through.
  __device__ __forceinline__ void wait() const { barrier_wait_cluster(arrived, 0); }
};
#endif

__device__ __forceinline__ int uniform(int x) { return __shfl_sync(kFull, x, 0); }

// Two consecutive rows of the convolution for N channels a thread, 32 apart; 4 taps.
template <int N>
struct GdnWindow {
  float tap[N][4], x[N][5];  // x[.][j]: the input of row first - 3 + j

  __device__ __forceinline__ void load_weights(const float* conv, int conv_dim) {
#pragma unroll
    for (int j = 0; j < 4; ++j, conv += conv_dim)
#pragma unroll
      for (int i = 0; i < N; ++i) tap[i][j] = conv[32 * i];
  }
  // Inputs in front of row 0, of [3] rows.
  __device__ __forceinline__ void load_history(const float* history, int ld, int first) {
    history += first * ld;
#pragma unroll
    for (int j = 0; j < 3; ++j, history += ld)
#pragma unroll
      for (int i = 0; i < N; ++i) x[i][j] = first + j < 3 ? history[32 * i] : 0.0f;
  }
  __device__ __forceinline__ void load_inputs(const float* in, int ld, int first, int rows) {
    in += static_cast<ptrdiff_t>(first - 3) * ld;
#pragma unroll
    for (int j = 0; j < 5; ++j, in += ld)
      if (first + j >= 3 && first + j - 3 < rows)
#pragma unroll
        for (int i = 0; i < N; ++i) x[i][j] = in[32 * i];
  }
  // y of the first row, then the window moves on by one row.
  __device__ __forceinline__ void next(float (&y)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = arith::fma32(tap[i][j], x[i][j], sum);
      y[i] = arith::silu32(sum);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] = x[i][j + 1];
    }
  }
  // After next() of the last row: the three inputs that the next step begins with.
  __device__ __forceinline__ void keep(float* history, int ld) const {
#pragma unroll
    for (int j = 0; j < 3; ++j, history += ld)
#pragma unroll
      for (int i = 0; i < N; ++i) history[32 * i] = x[i][j];
  }
};

// Threads that gdn_head wants for a head's columns in one of Split blocks, C a thread.
template <int J, int C, int Split>
__host__ __device__ constexpr int gdn_threads() {
  return 64 * J / (Split * C);
}

// Rows [row0, row0 + 8) of the batch for one head, by a block of gdn_threads.
template <int J, int C, int Split>
__device__ __forceinline__ void gdn_head(const GdnArgs& a, const StepParams* step,
                                         GdnShared<J, Split>& sh, const GdnPeer<Split>& peer) {
  static_assert(arith::kGdnLanes == 8 && arith::kHeadNormLanes == 32 && arith::kGroup == 32,
                "8 threads a column, a warp a norm");
  constexpr int kD = 8 * J, kColumns = kD / Split, kWarps = gdn_threads<J, C, Split>() / 32,
                kGroups = kColumns / 32, kPairs = kRowBlock / 2, kScalarWarp = 4;
  static_assert(kWarps >= 2 * kPairs && kWarps >= kGroups * kPairs &&
                kGroups * kRowBlock <= 2 * kWarps);
  static_assert(C == 1 || C == 2);
  using Shared = GdnShared<J, Split>;
  const int head = blockIdx.x / Split, t = threadIdx.x;
  // The shuffles tell the compiler that a warp goes together, wherever the arguments lie.
  const int lane = t % 32, warp = uniform(t / 32), row0 = uniform(a.row0),
            rows = uniform(min(a.m - row0, kRowBlock)), first_column = peer.rank * kColumns;
  const bool later = row0 > 0;                           // the launch in front wrote the state
  auto ready = [&] { wait_letting_go(), peer.meet(); };  // `in` is there
  if (later) ready();

  // S of this thread: rows l, l + 8, ... of the columns column + 4 c, in float4s of rows.
  const int l = lane / 4, column = warp * (4 * C) + lane % 4;
  const int s_at = (first_column + column) * 8 + l;
  float s[C][J];
  float4 *const s_to = reinterpret_cast<float4*>(step->s_to + a.s_offset + head * (kD * kD)) + s_at,
                *const s_from =
                    later
                        ? s_to
                        : reinterpret_cast<float4*>(step->s_from + a.s_offset + head * (kD * kD)) +
                              s_at;
  float* keep = step->conv_to + a.conv_offset;
#pragma unroll
  for (int j = 0; j < J / 4; ++j)
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const float4 w = __ldcs(s_from + (j * kD + 4 * c) * 8);
      s[c][4 * j] = w.x, s[c][4 * j + 1] = w.y, s[c][4 * j + 2] = w.z, s[c][4 * j + 3] = w.w;
    }

  // A warp's parts: one or two rows of q or of k, all channels, and of v, one group of channels;
  // one row of the output, one or two groups. With few rows they fall on different warps.
  const int k_head = head / a.repeat, conv_dim = a.conv_dim();
  const bool is_q = warp % 2 == 0;
  const int each = rows > kPairs ? 2 : 1;  // rows of a warp
  const int qk_row = each * (warp / 2), qk_channel = (is_q ? 0 : a.key_dim()) + k_head * kD + lane;
  const int qk_end = min(qk_row + each, rows);
  const bool qk_here = warp < 2 * kPairs && qk_row < rows;
  const int v_task = kWarps - 1 - warp, v_row = each * (v_task / kGroups),
            v_column = v_task % kGroups * 32 + lane,
            v_channel = 2 * a.key_dim() + head * kD + first_column + v_column;
  const int v_end = min(v_row + each, rows);
  const bool v_here = v_row < rows;
  const bool z_two = rows * kGroups > kWarps;
  const int z_task = (warp + kWarps - 2) % kWarps,
            z_row = z_task / (z_two ? (kGroups + 1) / 2 : kGroups),
            z_group = z_two ? z_task * 2 % kGroups : z_task % kGroups,
            z_column = first_column + z_group * 32 + lane;
  const bool z_here = z_row < rows;

  // With values, or they would live from one head to the next where a caller has several.
  GdnWindow<kD / 32> qk{};
  GdnWindow<1> v{};
  float weight[2] = {}, gate[2] = {}, a_neg = 0.0f, dt_bias = 0.0f, b = 0.0f, alpha = 0.0f;
  const float* history =
      later ? a.in + static_cast<size_t>(row0 - 3) * a.ld_in : step->conv_from + a.conv_offset;
  const int history_ld = later ? a.ld_in : conv_dim;
  if (qk_here) {
    qk.load_weights(a.conv + qk_channel, conv_dim);
    qk.load_history(history + qk_channel, history_ld, qk_row);
  }
  if (v_here) {
    v.load_weights(a.conv + v_channel, conv_dim);
    v.load_history(history + v_channel, history_ld, v_row);
  }
  if (warp == kScalarWarp) a_neg = a.a_neg[head], dt_bias = a.dt_bias[head];
  if (z_here) {
    weight[0] = a.norm[z_column];
    if (z_two) weight[1] = a.norm[z_column + 32];
  }
  if (!later) ready();

  const float* in = a.in + static_cast<size_t>(row0) * a.ld_in;
  if (qk_here) qk.load_inputs(in + qk_channel, a.ld_in, qk_row, qk_end);
  if (v_here) v.load_inputs(in + v_channel, a.ld_in, v_row, v_end);
  if (warp == kScalarWarp) {
    const float* scalars = in + min(lane, rows - 1) * a.ld_in + conv_dim + a.value_dim() + head;
    b = scalars[0], alpha = scalars[a.v_heads];
  }
  if (z_here) {
    const float* z = in + z_row * a.ld_in + conv_dim + head * kD + z_column;
    gate[0] = z[0];
    if (z_two) gate[1] = z[32];
  }
  if (t == 0) peer.expect((rows + 3) / 4 * 4 * kD);

  const bool last = row0 + rows == a.m;
  if (qk_here) {
#pragma unroll 1
    for (int row = qk_row; row < qk_end; ++row) {
      float y[kD / 32], ss = 0.0f;
      qk.next(y);
#pragma unroll
      for (int i = 0; i < kD / 32; ++i) ss = arith::fma32(y[i], y[i], ss);
      const float r = arith::div32(1.0f, arith::sqrt32(warp_tree(ss) + arith::kL2Eps));
      float* to = (is_q ? sh.queries : sh.keys)[row] + lane % 8 * Shared::kLane + lane / 8;
#pragma unroll
      for (int i = 0; i < kD / 32; ++i) {
        const float unit = y[i] * r;
        to[4 * i] = is_q ? unit * a.q_factor : unit;
      }
    }
    // Value heads share a key head: the first one keeps its history.
    if (last && qk_end == rows && head == k_head * a.repeat && peer.rank == 0)
      qk.keep(keep + qk_channel, conv_dim);
  }
  if (v_here) {
#pragma unroll 1
    for (int row = v_row; row < v_end; ++row) {
      float y[1];
      v.next(y);
      sh.values[row][v_column] = y[0];
    }
    if (last && v_end == rows) v.keep(keep + v_channel, conv_dim);
  }
  if (warp == kScalarWarp) {
    const float beta = arith::sigmoid32(b),
                decay = arith::exp32(a_neg * arith::softplus32(alpha + dt_bias));
    if (lane < rows) sh.scalars[lane] = {beta, decay};
  }
  if (z_here) gate[0] = arith::silu32(gate[0]), gate[1] = arith::silu32(gate[1]);
  __syncthreads();

  float k[J], q[J];
  auto fetch = [&](float(&to)[J], const float* from) {
#pragma unroll
    for (int j = 0; j < J / 4; ++j) {
      const float4 w = *reinterpret_cast<const float4*>(from + l * Shared::kLane + 4 * j);
      to[4 * j] = w.x, to[4 * j + 1] = w.y, to[4 * j + 2] = w.z, to[4 * j + 3] = w.w;
    }
  };
  fetch(k, sh.keys[0]);
  // The outputs of the row before wait in `mine` and `others`, so that their tree runs beside this
  // row's. With two columns a thread, threads l and l + 1 of a pair take one each and one tree
  // serves both. Thread `copy` of a column keeps four rows of it.
  const bool second = C == 2 && l % 2 != 0;
  const int copy = l / C, row_of_copy = peer.four_of(copy) * 4;
  float mine = 0.0f, others = 0.0f, four[4] = {};
  auto finish = [&](int row) {
    float o = mine + __shfl_xor_sync(kFull, others, 4);
    o += __shfl_xor_sync(kFull, o, 8);
    o += __shfl_xor_sync(kFull, o, 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = row == row_of_copy + i ? o : four[i];
  };
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    const float beta = sh.scalars[row].x, decay = sh.scalars[row].y;
    float value[C], sum[C], o[C];
#pragma unroll
    for (int c = 0; c < C; ++c) value[c] = sh.values[row][column + 4 * c], sum[c] = o[c] = 0.0f;
    fetch(q, sh.queries[row]);
#pragma unroll
    for (int j = 0; j < J; ++j)
#pragma unroll
      for (int c = 0; c < C; ++c) {
        s[c][j] = decay * s[c][j];
        sum[c] = arith::fma32(s[c][j], k[j], sum[c]);
      }
#pragma unroll
    for (int c = 0; c < C; ++c) sum[c] = gdn_tree<4>(sum[c]);
    finish(row - 1);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const float d = beta * (value[c] - sum[c]);
#pragma unroll
      for (int j = 0; j < J; ++j) s[c][j] = arith::fma32(k[j], d, s[c][j]);
    }
    fetch(k, sh.keys[min(row + 1, rows - 1)]);  // arrives while the outputs are summed
#pragma unroll
    for (int j = 0; j < J; ++j)
#pragma unroll
      for (int c = 0; c < C; ++c) o[c] = arith::fma32(s[c][j], q[j], o[c]);
    mine = second ? o[C - 1] : o[0], others = second ? o[0] : o[C - 1];
  }
  finish(rows - 1);
  peer.give(&sh.outputs[row_of_copy / 4][first_column + column + (second ? 4 : 0)], four, copy,
            copy < peer.kCopies && row_of_copy < rows);
  // On its way while the outputs are exchanged: the next launch waits for these writes too.
#pragma unroll
  for (int j = 0; j < J / 4; ++j)
#pragma unroll
    for (int c = 0; c < C; ++c)
      __stcs(s_to + (j * kD + 4 * c) * 8,
             make_float4(s[c][4 * j], s[c][4 * j + 1], s[c][4 * j + 2], s[c][4 * j + 3]));
  peer.wait();

  if (z_here) {  // gated norm
    const float* o = reinterpret_cast<const float*>(sh.outputs[z_row / 4]) + z_row % 4;
    float ss = 0.0f;
#pragma unroll
    for (int j = 0; j < kD; j += 32) ss = arith::fma32(o[4 * (j + lane)], o[4 * (j + lane)], ss);
    const float r = arith::div32(
        1.0f, arith::sqrt32(arith::div32(warp_tree(ss), static_cast<float>(kD)) + a.eps));
    const int row = row0 + z_row, at = head * kD + z_column;
#pragma unroll 1
    for (int i = 0; i <= static_cast<int>(z_two); ++i) {
      const float y = o[4 * (z_column + 32 * i)] * r * weight[0] * gate[0];
      weight[0] = weight[1], gate[0] = gate[1];
      a.out[static_cast<size_t>(row) * a.value_dim() + at + 32 * i] = y;
      quantize_group(y, lane, a.act, a.value_dim() / arith::kGroup, at / arith::kGroup + i, row,
                     a.m);
    }
  }
}

// grid: v_heads * Split blocks of gdn_threads, in clusters of Split.
template <int J, int C, int Split>
static __global__ void __launch_bounds__(gdn_threads<J, C, Split>())
    kernel_gdn(GdnArgs a, const StepParams* step) {
  extern __shared__ __align__(16) uint8_t gdn_shared[];
  GdnShared<J, Split>& sh = *reinterpret_cast<GdnShared<J, Split>*>(gdn_shared);
  if constexpr (Split == 1) {
    gdn_head<J, C, 1>(a, step, sh, GdnPeer<1>());
  } else {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
    __shared__ __align__(8) uint64_t arrived;
    gdn_head<J, C, 2>(a, step, sh, GdnPeer<2>(&arrived));
#endif
  }
}

}  // namespace vcuda::gpu
