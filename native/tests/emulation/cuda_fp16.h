// Stands in for CUDA's header, which common.cuh includes; the emulated kernels use none of it.
#pragma once

#include "cuda_runtime.h"

struct __half2;
float2 __half22float2(__half2);
