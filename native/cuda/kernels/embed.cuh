// Brings the step's parameters to the device and reads the embedding rows: x[i] = float32 of row
// tokens[i].
#pragma once

#include "arith/half.h"
#include "kernels/common.cuh"
#include "vllm_cuda.h"

namespace vcuda::gpu {

struct EmbedArgs {
  const StepParams* mapped;  // host memory
  StepParams* params;        // device memory, written with row 0
  const void* embedding;
  int type, n, rows;
  float* x;
};

// Reads of host memory are served one after the other, about 0.7 us each: a warp's threads share
// one, warps do not.
__device__ __forceinline__ int embed_token(const EmbedArgs& a, int row) {
  return *const_cast<const volatile int*>(&a.mapped->tokens[row]);
}

__device__ __forceinline__ void embed_row(const EmbedArgs& a, int row, int token, int t,
                                          int threads) {
  if (row == 0) {
    const volatile uint32_t* from = reinterpret_cast<const volatile uint32_t*>(a.mapped);
    for (int i = t; i < static_cast<int>(sizeof(StepParams) / 4); i += threads)
      reinterpret_cast<uint32_t*>(a.params)[i] = from[i];
  }
  const size_t first = static_cast<size_t>(token) * a.n;
  float* x = a.x + static_cast<size_t>(row) * a.n;
  for (int i = t; i < a.n; i += threads) {
    if (a.type == VCUDA_F32) {
      x[i] = static_cast<const float*>(a.embedding)[first + i];
    } else {
      const uint16_t h = static_cast<const uint16_t*>(a.embedding)[first + i];
      x[i] = a.type == VCUDA_F16 ? arith::half_to_float(h) : arith::bfloat_to_float(h);
    }
  }
}

// grid: m blocks
static __global__ void __launch_bounds__(256) kernel_embed(EmbedArgs a) {
  wait_letting_go();
  __shared__ int token;
  if (threadIdx.x == 0) token = embed_token(a, blockIdx.x);
  __syncthreads();
  embed_row(a, blockIdx.x, token, threadIdx.x, blockDim.x);
}

}  // namespace vcuda::gpu
