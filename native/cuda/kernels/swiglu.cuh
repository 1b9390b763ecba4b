// out = silu(gate) * up, gate_up [m, 2n]; and out quantized. A warp a group.
#pragma once

#include "arith/activations.h"
#include "kernels/act.cuh"

namespace vcuda::gpu {

// grid: (ceil(groups / 8), m), 256 threads
static __global__ void __launch_bounds__(256) kernel_swiglu(const float* gate_up, int n, int m, float* out, uint8_t* act) {
  wait_for_predecessor();
  const int groups = n / arith::kGroup, group = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y;
  if (group >= groups) return;
  const int i = group * arith::kGroup + lane;
  const float* from = gate_up + static_cast<size_t>(row) * 2 * n;
  const float v = arith::silu32(from[i]) * from[n + i];
  out[static_cast<size_t>(row) * n + i] = v;
  quantize_group(v, lane, act, groups, group, row, m);
}

}  // namespace vcuda::gpu
