// The file of this name in cuda/kernels, emulated: an address in shared memory counts from its
// begin, and every access is held against its alignment and size.
#pragma once

#include "kernels/common.cuh"

namespace vcuda::gpu {

inline uint32_t shared_at(const void* p) { return emulation::shared_offset(p); }

inline void copy_async(float* to, const float* from) { emulation::copy_async(to, from, 16); }
inline void copy_commit() { emulation::copy_commit(); }
template <int Pending>
void copy_wait() {
  emulation::copy_wait(Pending);
}

template <int W>
void load_vector(float* to, uint32_t at) {
  static_assert(W == 2 || W == 4, "two or four");
  emulation::load_shared(to, at, W * sizeof(float));
}

}  // namespace vcuda::gpu
