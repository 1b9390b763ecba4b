// Quantizes a float buffer, for operations whose own blocks do not hold whole groups.
#pragma once

#include "kernels/act.cuh"

namespace vcuda::gpu {

// grid: (ceil(groups / 8), m), 256 threads: a warp a group
static __global__ void __launch_bounds__(256)
    kernel_quantize(const float* x, int cols, int m, uint8_t* act) {
  wait_for_predecessor();
  const int groups = cols / arith::kGroup, group = blockIdx.x * 8 + threadIdx.x / 32,
            lane = threadIdx.x % 32, row = blockIdx.y;
  if (group >= groups) return;
  quantize_group(x[static_cast<size_t>(row) * cols + group * arith::kGroup + lane], lane, act,
                 groups, group, row, m);
}

}  // namespace vcuda::gpu
