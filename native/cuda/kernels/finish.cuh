// Finds NaN and infinity in the step's results.
#pragma once

#include "kernels/common.cuh"

namespace vcuda::gpu {

// *bad (mapped host memory, zeroed by the host) becomes 1 when one of a[0..na), b[0..nb) is not finite.
static __global__ void __launch_bounds__(256) kernel_check_finite(const float* a, size_t na, const float* b, size_t nb, int* bad) {
  wait_for_predecessor();
  uint32_t most = 0;
  const size_t start = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x, step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = start; i < na; i += step) most = max(most, arith::as_bits(a[i]) & 0x7fffffffu);
#pragma unroll 8
  for (size_t i = start; i < nb; i += step) most = max(most, arith::as_bits(b[i]) & 0x7fffffffu);
  if (most >= 0x7f800000u) *const_cast<volatile int*>(bad) = 1;
}

}  // namespace vcuda::gpu
