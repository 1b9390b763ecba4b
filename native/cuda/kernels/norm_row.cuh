// A row's norm by a team of 64 threads, which have four of its 256 lanes each: y = (x * r) * w, r =
// 1 / sqrt(ss / n + eps), ss = sum x^2.
#pragma once

#include "kernels/common.cuh"

namespace vcuda::gpu {

constexpr int kNormThreads = 64;

// r of a row of 4 * quads floats, by a team of kNormThreads threads, t in it, which sync() joins.
// quad(i): four inputs; sums: two floats that the team shares.
template <class Quad, class Sync>
__device__ __forceinline__ float norm_factor(int quads, float eps, int t, float* sums, Quad quad,
                                             Sync sync) {
  static_assert(arith::kNormLanes == 4 * kNormThreads && kNormThreads == 64);
  float s[4] = {};
#pragma unroll 4
  for (int i = t; i < quads; i += kNormThreads) {
    const float4 v = quad(i);
    s[0] = arith::fma32(v.x, v.x, s[0]), s[1] = arith::fma32(v.y, v.y, s[1]);
    s[2] = arith::fma32(v.z, v.z, s[2]), s[3] = arith::fma32(v.w, v.w, s[3]);
  }
  const float sum = warp_tree((s[0] + s[1]) + (s[2] + s[3]));
  if (t % 32 == 0) sums[t / 32] = sum;
  sync();
  const float ss = sums[0] + sums[1];
  return arith::div32(1.0f, arith::sqrt32(arith::div32(ss, static_cast<float>(4 * quads)) + eps));
}

__device__ __forceinline__ float4 norm_apply(float4 x, float r, float4 w) {
  return make_float4(x.x * r * w.x, x.y * r * w.y, x.z * r * w.z, x.w * r * w.w);
}

}  // namespace vcuda::gpu
