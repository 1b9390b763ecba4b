// Float tensors of the generator (arith/synth.h), made on the device.
#pragma once

#include "arith/half.h"
#include "arith/synth.h"
#include "kernels/common.cuh"
#include "vllm_cuda.h"

namespace vcuda::gpu {

// Elements [0, n) of a tensor of `type`; stored in that type, or as float32 when `widen`.
static __global__ void __launch_bounds__(256)
    kernel_synth_float(arith::SynthStream stream, float offset, float scale, int type, bool widen,
                       size_t n, void* to) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const float x = arith::synth_float(stream, i, offset, scale);
    if (type == VCUDA_F32) {
      static_cast<float*>(to)[i] = x;
      continue;
    }
    const uint16_t h = type == VCUDA_F16 ? arith::float_to_half(x) : arith::float_to_bfloat(x);
    if (widen)
      static_cast<float*>(to)[i] =
          type == VCUDA_F16 ? arith::half_to_float(h) : arith::bfloat_to_float(h);
    else static_cast<uint16_t*>(to)[i] = h;
  }
}

}  // namespace vcuda::gpu
