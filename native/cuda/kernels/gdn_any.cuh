// The delta rule for head sizes and taps that gdn.cuh has no registers for: one block a value head,
// S [dk][dv] in memory.
#pragma once

#include "kernels/gdn.cuh"

namespace vcuda::gpu {

// Shared memory in floats: keys and queries [8][dk], values and outputs [8][dv], beta and decay
// [8].
__host__ __device__ inline int gdn_any_shared_floats(int dk, int dv) {
  return kRowBlock * (2 * dk + 2 * dv + 2);
}

constexpr int kGdnAnyThreads = 256;

// grid: v_heads blocks
static __global__ void __launch_bounds__(kGdnAnyThreads)
    kernel_gdn_any(GdnArgs a, const StepParams* step) {
  extern __shared__ __align__(16) float gdn_any_shared[];
  constexpr int kThreads = kGdnAnyThreads, kWarps = kThreads / 32;
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, head = blockIdx.x;
  const int dk = a.dk, dv = a.dv, k_head = head / a.repeat;
  float* keys = gdn_any_shared;
  float* queries = keys + kRowBlock * dk;
  float* values = queries + kRowBlock * dk;
  float* outputs = values + kRowBlock * dv;
  float* betas = outputs + kRowBlock * dv;
  float* decays = betas + kRowBlock;
  const int history = a.taps - 1, conv_dim = a.conv_dim(), width = 2 * dk + dv;

  const float* conv_from = step->conv_from + a.conv_offset;
  float* conv_to = step->conv_to + a.conv_offset;
  const size_t s_at = a.s_offset + static_cast<size_t>(head) * dk * dv;
  const float* s_from = step->s_from + s_at;
  float* s_to = step->s_to + s_at;
  wait_letting_go();

  auto channel_of = [&](int i) {  // channels in the order [q dk | k dk | v dv]
    return i < dk       ? k_head * dk + i
           : i < 2 * dk ? a.key_dim() + k_head * dk + i - dk
                        : 2 * a.key_dim() + head * dv + i - 2 * dk;
  };
  // Input of channel ch at row: of this batch, or the history's where row is negative.
  auto input = [&](int row, int ch) {
    return row < 0 ? conv_from[static_cast<size_t>(row + history) * conv_dim + ch]
                   : a.in[static_cast<size_t>(row) * a.ld_in + ch];
  };

  for (int row0 = 0; row0 < a.m; row0 += kRowBlock) {
    const int rows = min(a.m - row0, kRowBlock);
    if (row0 > 0) __syncthreads();  // the last block's outputs have been read
    if (t >= kThreads - 32 && lane < rows) {
      const float* scalars =
          a.in + static_cast<size_t>(row0 + lane) * a.ld_in + conv_dim + a.value_dim();
      betas[lane] = arith::sigmoid32(scalars[head]);
      decays[lane] = arith::exp32(a.a_neg[head] *
                                  arith::softplus32(scalars[a.v_heads + head] + a.dt_bias[head]));
    }
    for (int task = t; task < rows * width; task += kThreads) {
      const int row = task / width, i = task % width, ch = channel_of(i);
      float sum = 0.0f;
      for (int j = 0; j < a.taps; ++j)
        sum = arith::fma32(a.conv[static_cast<size_t>(j) * conv_dim + ch],
                           input(row0 + row - history + j, ch), sum);
      const float y = arith::silu32(sum);
      if (i < dk) queries[row * dk + i] = y;
      else if (i < 2 * dk) keys[row * dk + i - dk] = y;
      else values[row * dv + i - 2 * dk] = y;
    }
    __syncthreads();
    for (int task = warp; task < 2 * rows; task += kWarps) {  // l2 norms: a warp a vector
      const bool is_q = task < rows;
      float* v = is_q ? queries + task * dk : keys + (task - rows) * dk;
      const float r =
          arith::div32(1.0f, arith::sqrt32(head_square_sum(v, dk, lane) + arith::kL2Eps));
      for (int n = lane; n < dk; n += 32) {
        const float unit = v[n] * r;
        v[n] = is_q ? unit * a.q_factor : unit;
      }
    }
    __syncthreads();

    const int l = t % 8, last = ceil_div(dv, kThreads / 8) * (kThreads / 8);
    // Whole warps, for the shuffles; columns past dv work on column 0 and keep nothing.
    for (int n = t / 8; n < last; n += kThreads / 8) {
      const bool real = n < dv;
      const int column = real ? n : 0;
      for (int row = 0; row < rows; ++row) {
        const float* from = row0 + row == 0 ? s_from : s_to;
        const float *k = keys + row * dk, *q = queries + row * dk;
        float memory = 0.0f, o = 0.0f;
        for (int i = l; i < dk; i += 8)
          memory =
              arith::fma32(decays[row] * from[static_cast<size_t>(i) * dv + column], k[i], memory);
        const float d = betas[row] * (values[row * dv + column] - gdn_tree<1>(memory));
        for (int i = l; i < dk; i += 8) {
          const size_t at = static_cast<size_t>(i) * dv + column;
          const float next = arith::fma32(k[i], d, decays[row] * from[at]);
          if (real) s_to[at] = next;
          o = arith::fma32(next, q[i], o);
        }
        o = gdn_tree<1>(o);
        if (real && l == 0) outputs[row * dv + n] = o;
      }
    }
    __syncthreads();

    for (int row = warp; row < rows; row += kWarps) {  // gated norm: a warp a row
      const float* o = outputs + row * dv;
      const float ss = head_square_sum(o, dv, lane);
      const float r =
          arith::div32(1.0f, arith::sqrt32(arith::div32(ss, static_cast<float>(dv)) + a.eps));
      const float* z = a.in + static_cast<size_t>(row0 + row) * a.ld_in + conv_dim + head * dv;
      float* out = a.out + static_cast<size_t>(row0 + row) * a.value_dim() + head * dv;
      for (int n0 = 0; n0 < dv; n0 += 32) {
        const int n = n0 + lane;
        float v = 0.0f;
        if (n < dv) {
          v = o[n] * r * a.norm[n] * arith::silu32(z[n]);
          out[n] = v;
        }
        // Groups of 32 lie inside a head only when dv is a multiple of 32; the host quantizes
        // otherwise.
        if (dv % 32 == 0)
          quantize_group(v, lane, a.act, a.value_dim() / arith::kGroup,
                         (head * dv + n0) / arith::kGroup, row0 + row, a.m);
      }
    }
  }
  for (int i = t; i < width; i += kThreads) {
    // Value heads share a key head: the first one keeps its history.
    if (i < 2 * dk && head % a.repeat != 0) continue;
    const int ch = channel_of(i);
    for (int j = 0; j < history; ++j)
      conv_to[static_cast<size_t>(j) * conv_dim + ch] = input(a.m - history + j, ch);
  }
}

}  // namespace vcuda::gpu
