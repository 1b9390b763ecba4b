// Stands in for CUDA's header, which common.cuh includes; the emulated kernels use none of it.
#pragma once
