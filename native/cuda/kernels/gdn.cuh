// Gated DeltaNet core: convolution, l2 norms, the delta rule for all rows, gated norm; a block a
// value head.
//
// S is read once and written once, whatever m is. Eight threads share a column: thread l of them
// has the rows l, l+8, ... of S, which are the contract's lanes. J = dk / 8 rows and C columns a
// thread keep S in registers; J = 0 is for other sizes and keeps it in memory. Order of a head in
// memory: [J/4][dv][8][4] floats, J = 0: [dk][dv].
#pragma once

#include <type_traits>

#include "arith/activations.h"
#include "kernels/act.cuh"

namespace vcuda::gpu {

struct GdnArgs {
  const float* in;    // [m, ld_in]: u | z | b | a
  const float* conv;  // [taps, conv_dim]
  const float *a_neg, *dt_bias, *norm;
  size_t s_offset, conv_offset;  // of this layer, in floats
  float* out;                    // [m, value_dim]
  uint8_t* act;
  int m, ld_in, k_heads, v_heads, dk, dv, taps;
  float q_factor, eps;

  __host__ __device__ int key_dim() const { return k_heads * dk; }
  __host__ __device__ int value_dim() const { return v_heads * dv; }
  __host__ __device__ int conv_dim() const { return 2 * key_dim() + value_dim(); }
};

// Index of S[i, n] inside a head.
inline int gdn_index(bool in_registers, int i, int n, int dv) {
  if (!in_registers) return i * dv + n;
  const int l = i % 8, j = i / 8;
  return ((j / 4 * dv + n) * 8 + l) * 4 + j % 4;
}

__device__ __forceinline__ float gdn_tree(float x) {  // over the 8 threads of a column
  x += __shfl_xor_sync(kFull, x, 1);
  x += __shfl_xor_sync(kFull, x, 2);
  return x + __shfl_xor_sync(kFull, x, 4);
}

// Shared memory in floats: keys and queries as [8 rows][8 lanes][dk / 8 + 4] (the pad spreads the
// lanes over the banks), values and outputs [8][dv], beta and decay [8].
__host__ __device__ inline int gdn_shared_floats(int dk, int dv) {
  return kRowBlock * (2 * 8 * (dk / 8 + 4) + 2 * dv + 2);
}

// One value head; threads = dv * 8 / C (J = 0: any number of warps). ready() returns when `in` is
// there.
template <int J, int C, class Ready, class Sync>
__device__ __forceinline__ void gdn_head(const GdnArgs& a, const StepParams* step, int head, int t,
                                         int threads, float* shared, Ready ready, Sync sync) {
  static_assert(arith::kGdnLanes == 8 && arith::kHeadNormLanes == 32,
                "8 threads a column, a warp a head");
  const int lane = t % 32, warp = t / 32, warps = threads / 32;
  const int dk = J ? J * 8 : a.dk, dv = a.dv, repeat = a.v_heads / a.k_heads,
            k_head = head / repeat;
  const int jn = J ? J : dk / 8, lane_stride = jn + 4, key_stride = 8 * lane_stride;
  float* keys = shared;
  float* queries = keys + kRowBlock * key_stride;
  float* values = queries + kRowBlock * key_stride;
  float* outputs = values + kRowBlock * dv;
  float* betas = outputs + kRowBlock * dv;
  float* decays = betas + kRowBlock;
  const int history = a.taps - 1, conv_dim = a.conv_dim();

  // The state comes from the step before: readable before the predecessor's end.
  const float* conv_from = step->conv_from + a.conv_offset;
  float* conv_to = step->conv_to + a.conv_offset;
  const size_t s_at = a.s_offset + static_cast<size_t>(head) * dk * dv;
  const float* s_from = step->s_from + s_at;
  float* s_to = step->s_to + s_at;
  constexpr int kC = C ? C : 1, kJ = J ? J : 4;
  float s[kC][kJ];
  if constexpr (J != 0) {
#pragma unroll
    for (int c = 0; c < kC; ++c)
#pragma unroll
      for (int j = 0; j < kJ / 4; ++j) {
        const float4 v =
            reinterpret_cast<const float4*>(s_from)[(j * dv + c * (threads / 8)) * 8 + t];
        s[c][4 * j] = v.x, s[c][4 * j + 1] = v.y, s[c][4 * j + 2] = v.z, s[c][4 * j + 3] = v.w;
      }
  }
  // Channels in the order [q dk | k dk | v dv]; with 4 taps a thread keeps a channel's window in
  // registers.
  const int width = 2 * dk + dv;
  auto channel_of = [&](int i) {
    return i < dk       ? k_head * dk + i
           : i < 2 * dk ? a.key_dim() + k_head * dk + i - dk
                        : 2 * a.key_dim() + head * dv + i - 2 * dk;
  };
  const bool windowed = a.taps == 4;
  ready();

  // Input of channel ch at row: of this batch, or the history's where row is negative.
  auto input = [&](int row, int ch) {
    return row < 0 ? conv_from[static_cast<size_t>(row + history) * conv_dim + ch]
                   : a.in[static_cast<size_t>(row) * a.ld_in + ch];
  };
  auto keep = [&](int row, int i, float y) {
    if (i < 2 * dk) {
      const int n = i < dk ? i : i - dk;
      (i < dk ? queries : keys)[row * key_stride + n % 8 * lane_stride + n / 8] = y;
    } else {
      values[row * dv + i - 2 * dk] = y;
    }
  };

  for (int row0 = 0; row0 < a.m; row0 += kRowBlock) {
    const int rows = min(a.m - row0, kRowBlock);
    if (row0 > 0) sync();  // the last block's outputs have been read
    if (t >= threads - 32 && lane < rows) {
      const float* scalars =
          a.in + static_cast<size_t>(row0 + lane) * a.ld_in + conv_dim + a.value_dim();
      betas[lane] = arith::sigmoid32(scalars[head]);
      decays[lane] = arith::exp32(a.a_neg[head] *
                                  arith::softplus32(scalars[a.v_heads + head] + a.dt_bias[head]));
    }
    // Gates of the row that this warp norms, fetched before they are needed.
    constexpr int kGates = 4;
    const bool early = dv <= 32 * kGates && rows <= warps;
    float gate[kGates], norm_weight[kGates];
    if (early && warp < rows) {
#pragma unroll
      for (int j = 0; j < kGates; ++j) {
        const int n = lane + 32 * j;
        gate[j] = n < dv
                      ? a.in[static_cast<size_t>(row0 + warp) * a.ld_in + conv_dim + head * dv + n]
                      : 0.0f;
        norm_weight[j] = n < dv ? a.norm[n] : 0.0f;
      }
    }
    if (windowed) {
      for (int i = t; i < width; i += threads) {
        const int ch = channel_of(i);
        float tap[4], window[3 + kRowBlock];
#pragma unroll
        for (int j = 0; j < 3; ++j) window[j] = input(row0 - 3 + j, ch);
#pragma unroll
        for (int row = 0; row < kRowBlock; ++row)
          window[3 + row] =
              row < rows ? a.in[static_cast<size_t>(row0 + row) * a.ld_in + ch] : 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) tap[j] = a.conv[static_cast<size_t>(j) * conv_dim + ch];
        auto convolve = [&](auto first, auto count) {  // rows [first, first + count), interleaved
#pragma unroll
          for (int k = 0; k < decltype(count)::value; ++k) {
            const int row = decltype(first)::value + k;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; ++j) sum = arith::fma32(tap[j], window[row + j], sum);
            const float y = arith::silu32(sum);
            if (row < rows) keep(row, i, y);
          }
        };
        using std::integral_constant;
        convolve(integral_constant<int, 0>{}, integral_constant<int, 1>{});
        if (rows > 1) convolve(integral_constant<int, 1>{}, integral_constant<int, 3>{});
        if (rows > 4) convolve(integral_constant<int, 4>{}, integral_constant<int, 4>{});
        if (row0 + rows == a.m &&
            (i >= 2 * dk ||
             head % repeat == 0)) {  // the last block: its last three inputs are the history
#pragma unroll
          for (int n = 1; n <= kRowBlock; ++n)
            if (n == rows)
#pragma unroll
              for (int j = 0; j < 3; ++j)
                conv_to[static_cast<size_t>(j) * conv_dim + ch] = window[n + j];
        }
      }
    } else {
      for (int task = t; task < rows * width; task += threads) {
        const int row = task / width, i = task % width, ch = channel_of(i);
        float sum = 0.0f;
        for (int j = 0; j < a.taps; ++j)
          sum = arith::fma32(a.conv[static_cast<size_t>(j) * conv_dim + ch],
                             input(row0 + row - history + j, ch), sum);
        keep(row, i, arith::silu32(sum));
      }
    }
    sync();
    for (int task = warp; task < 2 * rows; task += warps) {  // l2 norms: a warp a vector
      const bool is_q = task < rows;
      float* v = (is_q ? queries : keys) + (is_q ? task : task - rows) * key_stride;
      float ss = 0.0f;
      for (int n = lane; n < dk; n += 32) {
        const float x = v[n % 8 * lane_stride + n / 8];
        ss = arith::fma32(x, x, ss);
      }
      const float r = arith::div32(1.0f, arith::sqrt32(warp_tree(ss) + arith::kL2Eps));
      for (int n = lane; n < dk; n += 32) {
        float& x = v[n % 8 * lane_stride + n / 8];
        const float unit = x * r;
        x = is_q ? unit * a.q_factor : unit;
      }
    }
    sync();

    if constexpr (J != 0) {
      const int l = t % 8, column = t / 8, per = threads / 8;
      for (int row = 0; row < rows; ++row) {
        float k[kJ], q[kJ];
#pragma unroll
        for (int j = 0; j < kJ / 4; ++j) {
          const float4 kv =
              *reinterpret_cast<const float4*>(keys + row * key_stride + l * lane_stride + 4 * j);
          const float4 qv = *reinterpret_cast<const float4*>(queries + row * key_stride +
                                                             l * lane_stride + 4 * j);
          k[4 * j] = kv.x, k[4 * j + 1] = kv.y, k[4 * j + 2] = kv.z, k[4 * j + 3] = kv.w;
          q[4 * j] = qv.x, q[4 * j + 1] = qv.y, q[4 * j + 2] = qv.z, q[4 * j + 3] = qv.w;
        }
        const float beta = betas[row], decay = decays[row];
        float memory[kC], o[kC];
#pragma unroll
        for (int c = 0; c < kC; ++c) {
          memory[c] = 0.0f;
#pragma unroll
          for (int j = 0; j < kJ; ++j) {
            s[c][j] = decay * s[c][j];
            memory[c] = arith::fma32(s[c][j], k[j], memory[c]);
          }
        }
#pragma unroll
        for (int c = 0; c < kC; ++c) memory[c] = gdn_tree(memory[c]);
#pragma unroll
        for (int c = 0; c < kC; ++c) {
          const float d = beta * (values[row * dv + column + c * per] - memory[c]);
          o[c] = 0.0f;
#pragma unroll
          for (int j = 0; j < kJ; ++j) {
            s[c][j] = arith::fma32(k[j], d, s[c][j]);
            o[c] = arith::fma32(s[c][j], q[j], o[c]);
          }
        }
#pragma unroll
        for (int c = 0; c < kC; ++c) {
          o[c] = gdn_tree(o[c]);
          if (l == 0) outputs[row * dv + column + c * per] = o[c];
        }
      }
    } else {
      const int l = t % 8, last = ceil_div(dv, threads / 8) * (threads / 8);
      for (int n = t / 8; n < last;
           n +=
           threads /
           8) {  // whole warps, for the shuffles; columns past dv work on column 0 and keep nothing
        const bool real = n < dv;
        const int column = real ? n : 0;
        for (int row = 0; row < rows; ++row) {
          const float* from = row0 + row == 0 ? s_from : s_to;
          const float *k = keys + row * key_stride + l * lane_stride,
                      *q = queries + row * key_stride + l * lane_stride;
          float memory = 0.0f, o = 0.0f;
          for (int j = 0; j < jn; ++j)
            memory = arith::fma32(decays[row] * from[static_cast<size_t>(j * 8 + l) * dv + column],
                                  k[j], memory);
          const float d = betas[row] * (values[row * dv + column] - gdn_tree(memory));
          for (int j = 0; j < jn; ++j) {
            const size_t at = static_cast<size_t>(j * 8 + l) * dv + column;
            const float next = arith::fma32(k[j], d, decays[row] * from[at]);
            if (real) s_to[at] = next;
            o = arith::fma32(next, q[j], o);
          }
          o = gdn_tree(o);
          if (real && l == 0) outputs[row * dv + n] = o;
        }
      }
    }
    sync();

    for (int row = warp; row < rows; row += warps) {  // gated norm: a warp a row
      float* o = outputs + row * dv;
      const float ss = head_square_sum(o, dv, lane);
      const float r =
          arith::div32(1.0f, arith::sqrt32(arith::div32(ss, static_cast<float>(dv)) + a.eps));
      float* out = a.out + static_cast<size_t>(row0 + row) * a.value_dim() + head * dv;
      auto finish = [&](int n0, float z, float w) {
        const int n = n0 + lane;
        float v = 0.0f;
        if (n < dv) {
          v = o[n] * r * w * arith::silu32(z);
          out[n] = v;
        }
        // Groups of 32 lie inside a head only when dv is a multiple of 32; the host quantizes
        // otherwise.
        if (dv % 32 == 0)
          quantize_group(v, lane, a.act, a.value_dim() / arith::kGroup,
                         (head * dv + n0) / arith::kGroup, row0 + row, a.m);
      };
      if (early) {
#pragma unroll
        for (int j = 0; j < kGates; ++j)
          if (32 * j < dv) finish(32 * j, gate[j], norm_weight[j]);
      } else {
        const float* z = a.in + static_cast<size_t>(row0 + row) * a.ld_in + conv_dim + head * dv;
        for (int n0 = 0; n0 < dv; n0 += 32)
          finish(n0, n0 + lane < dv ? z[n0 + lane] : 0.0f,
                 n0 + lane < dv ? a.norm[n0 + lane] : 0.0f);
      }
    }
  }
  for (int i = t; !windowed && i < width; i += threads) {
    if (i < 2 * dk && head % repeat != 0)
      continue;  // value heads share a key head: the first one keeps its history
    const int ch = channel_of(i);
    for (int j = 0; j < history; ++j)
      conv_to[static_cast<size_t>(j) * conv_dim + ch] = input(a.m - history + j, ch);
  }
  if constexpr (J != 0) {
#pragma unroll
    for (int c = 0; c < kC; ++c)
#pragma unroll
      for (int j = 0; j < kJ / 4; ++j)
        reinterpret_cast<float4*>(s_to)[(j * dv + c * (threads / 8)) * 8 + t] = {
            s[c][4 * j], s[c][4 * j + 1], s[c][4 * j + 2], s[c][4 * j + 3]};
  }
}

// grid: v_heads blocks of dv * 8 / C threads (J = 0: 256)
template <int J, int C>
static __global__ void __launch_bounds__(J ? 512 : 256)
    kernel_gdn(GdnArgs a, const StepParams* step) {
  extern __shared__ __align__(16) float gdn_shared[];
  gdn_head<J, C>(
      a, step, blockIdx.x, threadIdx.x, blockDim.x, gdn_shared, [] { wait_letting_go(); },
      [] { __syncthreads(); });
}

}  // namespace vcuda::gpu
