// Brings the step's parameters to device memory and reads the embedding rows: x[i] = float32 of row
// tokens[i].
#pragma once

#include "arith/half.h"
#include "kernels/common.cuh"
#include "vllm_cuda.h"

namespace vcuda::gpu {

struct EmbedArgs {
  StepParams* params;  // device memory
  const void* embedding;
  int type, n, rows;
  float* x;

  static constexpr int kPart = 1024;  // columns of a block
  int parts() const { return (n + kPart - 1) / kPart; }
};

// grid: (parts, m), 256 threads. The parameters come with the launch: a graph's launch is given new
// ones, and no access to host memory is waited for.
static __global__ void __launch_bounds__(256)
    kernel_embed(EmbedArgs a, const __grid_constant__ StepParams step) {
  wait_letting_go();
  const int row = blockIdx.y;
  if (row == 0 && blockIdx.x == 0)
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(StepParams) / 4); i += blockDim.x)
      reinterpret_cast<uint32_t*>(a.params)[i] = reinterpret_cast<const uint32_t*>(&step)[i];
  const size_t first = static_cast<size_t>(step.tokens[row]) * a.n;
  float* x = a.x + static_cast<size_t>(row) * a.n;
#pragma unroll
  for (int j = 0; j < EmbedArgs::kPart / 256; ++j) {
    const int i = blockIdx.x * EmbedArgs::kPart + j * 256 + threadIdx.x;
    if (i >= a.n) break;
    if (a.type == VCUDA_F32) {
      x[i] = static_cast<const float*>(a.embedding)[first + i];
    } else {
      const uint16_t h = static_cast<const uint16_t*>(a.embedding)[first + i];
      x[i] = a.type == VCUDA_F16 ? arith::half_to_float(h) : arith::bfloat_to_float(h);
    }
  }
}

}  // namespace vcuda::gpu
