// Finds NaN and infinity in the step's results.
#pragma once

#include "kernels/common.cuh"

namespace vcuda::gpu {

struct CheckArgs {
  const float *a, *b;
  size_t na, nb;
  int* bad;  // mapped host memory, zeroed by the host: becomes 1 when a value is not finite
};

__device__ __forceinline__ void check_finite(const CheckArgs& c, size_t thread, size_t threads) {
  uint32_t most = 0;
  for (size_t i = thread; i < c.na; i += threads)
    most = max(most, arith::as_bits(c.a[i]) & 0x7fffffffu);
#pragma unroll 8
  for (size_t i = thread; i < c.nb; i += threads)
    most = max(most, arith::as_bits(c.b[i]) & 0x7fffffffu);
  if (most >= 0x7f800000u) *const_cast<volatile int*>(c.bad) = 1;
}

static __global__ void __launch_bounds__(256) kernel_check_finite(CheckArgs c) {
  wait_letting_go();
  check_finite(c, static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x,
               static_cast<size_t>(gridDim.x) * blockDim.x);
}

}  // namespace vcuda::gpu
