// Accesses to shared memory that CUDA C++ has no name for. tests/emulation has a file of this name
// in its place, so that a kernel that includes it also runs on a CPU.
#pragma once

#include "kernels/common.cuh"

namespace vcuda::gpu {

__device__ __forceinline__ uint32_t shared_at(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes to shared memory, past the first-level cache.
__device__ __forceinline__ void copy_async(float* to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// W consecutive floats of shared memory as one access. volatile: a compiler that sees where they
// are used reads them there, and the reads of the step ahead are not ahead any more.
template <int W>
__device__ __forceinline__ void load_vector(float* to, uint32_t at) {
  static_assert(W == 2 || W == 4, "two or four");
  if constexpr (W == 4)
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(at));
  else asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "r"(at));
}

}  // namespace vcuda::gpu
