// out = silu(gate) * up, gate_up [m, 2n]; and out quantized. A warp a group. Where gates and ups
// lie in units their projection does it itself (ring_gate.cuh), but for taps.
#pragma once

#include "arith/activations.h"
#include "kernels/act.cuh"

namespace vcuda::gpu {

struct SwigluArgs {
  const float* gate_up;
  float* out;
  uint8_t* act;
  int n, m;
};

__device__ __forceinline__ void swiglu_group(const SwigluArgs& a, int group, int row, int lane) {
  const int i = group * arith::kGroup + lane;
  const float* from = a.gate_up + static_cast<size_t>(row) * 2 * a.n;
  const float v = arith::silu32(from[i]) * from[a.n + i];
  a.out[static_cast<size_t>(row) * a.n + i] = v;
  quantize_group(v, lane, a.act, a.n / arith::kGroup, group, row, a.m);
}

// grid: (ceil(groups / 8), m), 256 threads
static __global__ void __launch_bounds__(256) kernel_swiglu(SwigluArgs a) {
  wait_letting_go();
  const int group = blockIdx.x * 8 + threadIdx.x / 32;
  if (group < a.n / arith::kGroup) swiglu_group(a, group, blockIdx.y, threadIdx.x % 32);
}

}  // namespace vcuda::gpu
