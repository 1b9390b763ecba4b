// y = (x * r) * w, r = 1 / sqrt(ss / n + eps), ss = sum x^2 with 256 lanes; and y quantized.
//
// 64 threads have four lanes each and make 256 outputs of a row; every such part forms the whole
// sum, since a row comes from the second-level cache faster than parts of sums are exchanged.
#pragma once

#include "kernels/act.cuh"

namespace vcuda::gpu {

constexpr int kNormThreads = 64;

struct NormArgs {
  const float *x, *w;
  float* y;
  uint8_t* act;
  int n, m;
  float eps;

  __host__ __device__ int parts() const { return (n + 4 * kNormThreads - 1) / (4 * kNormThreads); }
};

// Thread t of kNormThreads, which sync() joins; sums: two floats that they share. ready() returns
// when x is there.
template <class Ready, class Sync>
__device__ __forceinline__ void norm_part(const NormArgs& a, int part, int row, int t, float* sums,
                                          Ready ready, Sync sync) {
  // Rounds whose loads are all issued at once; longer rows take a loop for the rest.
  constexpr int kHeld = 20;
  static_assert(arith::kNormLanes == 4 * kNormThreads && kNormThreads == 64);
  const int lane = t % 32, quads = a.n / 4, own = part * kNormThreads + t;  // n: whole groups
  const bool here = own < quads;
  const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f),
               *x = reinterpret_cast<const float4*>(a.x) + static_cast<size_t>(row) * quads;
  const float4 weight = here ? reinterpret_cast<const float4*>(a.w)[own] : none;
  ready();
  float4 held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    held[j] = t + kNormThreads * j < quads ? x[t + kNormThreads * j] : none;
  const float4 value = here ? x[own] : none;
  float s[4] = {};  // an absent input's square adds +0.0 and changes nothing
  auto fold = [&](const float4& v) {
    s[0] = arith::fma32(v.x, v.x, s[0]), s[1] = arith::fma32(v.y, v.y, s[1]);
    s[2] = arith::fma32(v.z, v.z, s[2]), s[3] = arith::fma32(v.w, v.w, s[3]);
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) fold(held[j]);
  for (int i = t + kNormThreads * kHeld; i < quads; i += kNormThreads) fold(x[i]);
  const float sum = warp_tree((s[0] + s[1]) + (s[2] + s[3]));
  if (lane == 0) sums[t / 32] = sum;
  sync();
  const float ss = sums[0] + sums[1];
  const float r =
      arith::div32(1.0f, arith::sqrt32(arith::div32(ss, static_cast<float>(a.n)) + a.eps));
  const float4 y = make_float4(value.x * r * weight.x, value.y * r * weight.y,
                               value.z * r * weight.z, value.w * r * weight.w);
  if (here) reinterpret_cast<float4*>(a.y)[static_cast<size_t>(row) * quads + own] = y;
  quantize_quad(y, lane, a.act, a.n / arith::kGroup, own / 8, row, a.m);
}

// grid: (parts, m)
static __global__ void __launch_bounds__(kNormThreads) kernel_rms_norm(NormArgs a) {
  __shared__ float sums[2];
  norm_part(
      a, blockIdx.x, blockIdx.y, threadIdx.x, sums, [] { wait_letting_go(); },
      [] { __syncthreads(); });
}

}  // namespace vcuda::gpu
