// Stands in for CUDA's header, which common.cuh includes: the part that the kernels use.
#pragma once

#include "arith/half.h"
#include "cuda_runtime.h"

struct __half2 {
  uint16_t x, y;
};
inline float2 __half22float2(__half2 h) {
  return {vcuda::arith::half_to_float(h.x), vcuda::arith::half_to_float(h.y)};
}
