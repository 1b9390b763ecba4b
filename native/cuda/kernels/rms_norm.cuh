// y = (x * r) * w, r = 1 / sqrt(ss / n + eps), ss = sum x^2 with 256 lanes; and y quantized.
#pragma once

#include "kernels/act.cuh"

namespace vcuda::gpu {

constexpr int kNormRounds =
    2;  // of 256 inputs that a block finishes; every block forms the whole sum

struct NormArgs {
  const float *x, *w;
  float* y;
  uint8_t* act;
  int n, m;
  float eps;

  __host__ __device__ int parts() const {
    return (n + 256 * kNormRounds - 1) / (256 * kNormRounds);
  }
};

// 256 threads: thread t is lane t. In one round a warp holds one group. ready() returns when x is
// there.
template <class Ready, class Sync>
__device__ __forceinline__ void norm_part(const NormArgs& a, int part, int row, int t, float* warps,
                                          Ready ready, Sync sync) {
  constexpr int kHeld =
      24;  // rounds whose loads are all issued at once; longer rows take a loop for the rest
  static_assert(arith::kNormLanes == 256, "one thread a lane");
  const int lane = t % 32, first = part * kNormRounds * 256 + t, n = a.n;
  const float *x = a.x + static_cast<size_t>(row) * n, *w = a.w;
  float* y = a.y + static_cast<size_t>(row) * n;
  float weight[kNormRounds], value[kNormRounds], held[kHeld];
#pragma unroll
  for (int j = 0; j < kNormRounds; ++j) weight[j] = first + 256 * j < n ? w[first + 256 * j] : 0.0f;
  ready();
#pragma unroll
  for (int j = 0; j < kHeld; ++j) held[j] = t + 256 * j < n ? x[t + 256 * j] : 0.0f;
#pragma unroll
  for (int j = 0; j < kNormRounds; ++j) value[j] = first + 256 * j < n ? x[first + 256 * j] : 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    if (t + 256 * j < n) sum = arith::fma32(held[j], held[j], sum);
  for (int i = t + 256 * kHeld; i < n; i += 256) sum = arith::fma32(x[i], x[i], sum);
  sum = warp_tree(sum);
  if (lane == 0) warps[t / 32] = sum;
  sync();
  const float ss = ((warps[0] + warps[1]) + (warps[2] + warps[3])) +
                   ((warps[4] + warps[5]) + (warps[6] + warps[7]));
  const float r =
      arith::div32(1.0f, arith::sqrt32(arith::div32(ss, static_cast<float>(n)) + a.eps));
#pragma unroll
  for (int j = 0; j < kNormRounds; ++j) {
    const int i = first + 256 * j;
    if (i >= n) break;  // n is a multiple of 32: a warp goes together
    const float v = value[j] * r * weight[j];
    y[i] = v;
    quantize_group(v, lane, a.act, n / arith::kGroup, i / arith::kGroup, row, a.m);
  }
}

// grid: (parts, m), 256 threads
static __global__ void __launch_bounds__(256) kernel_rms_norm(NormArgs a) {
  __shared__ float warps[8];
  norm_part(
      a, blockIdx.x, blockIdx.y, threadIdx.x, warps, [] { wait_letting_go(); },
      [] { __syncthreads(); });
}

}  // namespace vcuda::gpu
