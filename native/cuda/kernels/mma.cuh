// The matrix instruction of the projections. tests/emulation has a file of this name in its place.
#pragma once

#include "kernels/common.cuh"

namespace vcuda::gpu {

// a * b + start over 16 x 8 x 32: a unsigned, b signed 8-bit.
__device__ __forceinline__ int4 imma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int4 start) {
  int4 d;
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start.x), "r"(start.y),
        "r"(start.z), "r"(start.w));
  return d;
}

}  // namespace vcuda::gpu
