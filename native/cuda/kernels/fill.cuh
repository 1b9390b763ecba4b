// Writes a word over memory that no step may read: tests plant it and look for it in the results.
#pragma once

#include "kernels/common.cuh"

namespace vcuda::gpu {

static __global__ void __launch_bounds__(256)
    kernel_fill(uint32_t* to, size_t words, uint32_t word) {
  wait_for_predecessor();
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += static_cast<size_t>(gridDim.x) * blockDim.x)
    to[i] = word;
}

// A layer's keys and values (attention.cuh) of the positions from `position` on.
static __global__ void __launch_bounds__(256)
    kernel_fill_kv(uint32_t* kv, size_t head_words, size_t heads, int d, int position,
                   uint32_t word) {
  wait_for_predecessor();
  const size_t half = head_words * heads, words = 2 * half;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const size_t at = i % head_words;
    const size_t t = i < half ? at / (static_cast<size_t>(d) * arith::kChunk) * arith::kChunk +
                                    at % arith::kChunk
                              : at / static_cast<size_t>(d);
    if (t >= static_cast<size_t>(position)) kv[i] = word;
  }
}

}  // namespace vcuda::gpu
