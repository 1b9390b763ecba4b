// What every kernel uses: the step's parameters in device memory, warp reductions of the contract,
// and the two instructions that let a kernel's start overlap its predecessor's end.
//
// Overlap (programmatic dependent launch): a kernel may start while the one before it still runs.
// Until its wait returns it may only read weights. A projection (wait_for_predecessor) lets its
// successor start after its own wait, so that this one may also read what kernels before the
// projection wrote; the small operations (wait_letting_go) let theirs, a projection, start at once:
// it fills its ring with weights meanwhile. After the wait everything is visible.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "arith/bits.h"
#include "arith/hd.h"

namespace vcuda::gpu {

constexpr int kMaxRows = 64;  // mmax, as model.cpp limits it
constexpr int kRowBlock = 8;  // rows that one pass over the weights serves
constexpr unsigned kFull = 0xffffffffu;

// One step's inputs: arguments of its first kernel, which puts them into device memory for the
// others, so that a captured graph stays valid from step to step.
struct StepParams {
  int position;
  float *s_from, *conv_from, *s_to, *conv_to;
  int tokens[kMaxRows];
};

__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_go() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_letting_go() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The adjacency tree over 32 lanes.
__device__ __forceinline__ float warp_tree(float x) {
#pragma unroll
  for (int n = 1; n < 32; n *= 2) x += __shfl_xor_sync(kFull, x, n);
  return x;
}

__device__ __forceinline__ uint32_t warp_max(uint32_t x) { return __reduce_max_sync(kFull, x); }
__device__ __forceinline__ int warp_sum(int x) { return __reduce_add_sync(kFull, x); }

// lane-th lane of a 32-lane sum of squares over x[0..n), then the tree.
__device__ __forceinline__ float head_square_sum(const float* x, int n, int lane) {
  float sum = 0.0f;
  for (int i = lane; i < n; i += 32) sum = arith::fma32(x[i], x[i], sum);
  return warp_tree(sum);
}

__host__ __device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace vcuda::gpu
