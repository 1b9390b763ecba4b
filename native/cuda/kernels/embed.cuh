// Brings the step's parameters to the device and reads the embedding rows: x[i] = float32 of row tokens[i].
#pragma once

#include "arith/half.h"
#include "kernels/common.cuh"
#include "vllm_cuda.h"

namespace vcuda::gpu {

// grid: m blocks. mapped: host memory; params: device memory, written by block 0.
static __global__ void __launch_bounds__(256) kernel_embed(const StepParams* mapped, StepParams* params, const void* embedding, int type, int n,
                                                           float* x) {
  wait_for_predecessor();
  __shared__ int token;
  if (threadIdx.x == 0) token = *const_cast<const volatile int*>(&mapped->tokens[blockIdx.x]);
  if (blockIdx.x == 0) {
    const volatile uint32_t* from = reinterpret_cast<const volatile uint32_t*>(mapped);
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(StepParams) / 4); i += blockDim.x) reinterpret_cast<uint32_t*>(params)[i] = from[i];
  }
  __syncthreads();
  const size_t first = static_cast<size_t>(token) * n;
  float* row = x + static_cast<size_t>(blockIdx.x) * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (type == VCUDA_F32) {
      row[i] = static_cast<const float*>(embedding)[first + i];
    } else {
      const uint16_t h = static_cast<const uint16_t*>(embedding)[first + i];
      row[i] = type == VCUDA_F16 ? arith::half_to_float(h) : arith::bfloat_to_float(h);
    }
  }
}

}  // namespace vcuda::gpu
