// Float32 rows of a projection: a warp a weight row and an activation row; lane l folds inputs l,
// l+32, ...
#pragma once

#include "kernels/common.cuh"

namespace vcuda::gpu {

// grid: (ceil(rows / 4), m), 128 threads. y[i*ld + r] = or += W x.
static __global__ void __launch_bounds__(128)
    kernel_project_float(const float* w, const float* x, int cols, int rows, float* y, int ld,
                         bool add) {
  static_assert(arith::kFloatLanes == 32, "one thread a lane");
  wait_for_predecessor();
  const int r = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, i = blockIdx.y;
  if (r >= rows) return;
  const float* weights = w + static_cast<size_t>(r) * cols;
  const float* row = x + static_cast<size_t>(i) * cols;
  float sum = 0.0f;
#pragma unroll 16
  for (int k = lane; k < cols; k += 32) sum = arith::fma32(weights[k], row[k], sum);
  sum = warp_tree(sum);
  if (lane == 0) {
    float* to = y + static_cast<size_t>(i) * ld + r;
    *to = add ? *to + sum : sum;
  }
}

}  // namespace vcuda::gpu
