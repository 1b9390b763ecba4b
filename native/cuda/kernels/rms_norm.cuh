// y = (x * r) * w, r = 1 / sqrt(ss / n + eps), ss = sum x^2 with 256 lanes; and y quantized.
//
// A team makes 256 outputs of a row; every such part forms the whole sum, since a row comes from
// the second-level cache faster than parts of sums are exchanged.
#pragma once

#include "kernels/act.cuh"
#include "kernels/norm_row.cuh"
#include "kernels/shared_access.cuh"

namespace vcuda::gpu {

struct NormArgs {
  const float *x, *w;
  float* y;
  uint8_t* act;
  int n, m;
  float eps;

  __host__ __device__ int parts() const { return (n + 4 * kNormThreads - 1) / (4 * kNormThreads); }
};

// grid: (parts, m). A row goes through shared memory, all of it on its way at once: into registers
// the compiler lets six loads go at a time, each group waiting for the one before. What of a longer
// row does not fit is read as it is needed.
static __global__ void __launch_bounds__(kNormThreads, 24) kernel_rms_norm(NormArgs a) {
  constexpr int kHeld = 20 * kNormThreads;
  __shared__ float4 held[kHeld];
  __shared__ float sums[2];
  const int t = threadIdx.x, row = blockIdx.y, quads = a.n / 4,  // n: whole groups
      own = blockIdx.x * kNormThreads + t;
  const bool here = own < quads;
  const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f),
               *x = reinterpret_cast<const float4*>(a.x) + static_cast<size_t>(row) * quads;
  const float4 weight = here ? reinterpret_cast<const float4*>(a.w)[own] : none;
  wait_letting_go();
#pragma unroll 4
  for (int i = t; i < min(quads, kHeld); i += kNormThreads)  // a thread reads what it has copied
    copy_async(reinterpret_cast<float*>(held + i), reinterpret_cast<const float*>(x + i));
  copy_commit();
  copy_wait<0>();
  auto quad = [&](int i) { return i < kHeld ? held[i] : x[i]; };
  const float r = norm_factor(quads, a.eps, t, sums, quad, [] { __syncthreads(); });
  const float4 y = norm_apply(here ? quad(own) : none, r, weight);
  if (here) reinterpret_cast<float4*>(a.y)[static_cast<size_t>(row) * quads + own] = y;
  quantize_quad(y, t % 32, a.act, a.n / arith::kGroup, own / 8, row, a.m);
}

}  // namespace vcuda::gpu
