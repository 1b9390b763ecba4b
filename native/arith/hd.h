// Primitives that give the same bits on the host and on a CUDA device. Everything in arith/ is
// built from these, from sums, differences and products, and from integer operations; nothing here
// calls a mathematical library except for the exact fma and sqrt.
//
// A translation unit that includes arith/ is compiled with -ffp-contract=off (host) or --fmad=false
// (nvcc): a fused multiply-add happens where the source says fma and nowhere else.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__FAST_MATH__)
#error "arith/ defines bits: build without -ffast-math"
#endif
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
#error "arith/ defines bits: float expressions must be evaluated in float (x86: -mfpmath=sse)"
#endif

// Always inlined on purpose. The CPU backend compiles these headers once per instruction set: an
// out-of-line copy would be merged by the linker, and a machine without AVX-512 could be handed the
// AVX-512 copy.
#if defined(__CUDACC__)
#define ARITH_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define ARITH_HD inline __attribute__((always_inline))
#else
#define ARITH_HD inline
#endif

namespace vcuda::arith {

ARITH_HD uint32_t as_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
#endif
}

ARITH_HD float as_float(uint32_t u) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(u);
#else
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
#endif
}

ARITH_HD uint64_t as_bits(double x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint64_t>(__double_as_longlong(x));
#else
  uint64_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
#endif
}

ARITH_HD double as_double(uint64_t u) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(static_cast<long long>(u));
#else
  double x;
  std::memcpy(&x, &u, sizeof x);
  return x;
#endif
}

// a * b + c, rounded once.
ARITH_HD float fma32(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__GNUC__)
  return __builtin_fmaf(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

ARITH_HD double fma64(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#elif defined(__GNUC__)
  return __builtin_fma(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// a / b and sqrt(a), rounded once: also where nvcc was told -prec-div=false or -prec-sqrt=false.
ARITH_HD float div32(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

ARITH_HD float sqrt32(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#elif defined(__GNUC__)
  return __builtin_sqrtf(a);
#else
  return std::sqrt(a);
#endif
}

// 1 / d for d in [1, 2], rounded once. On a device div32's instructions without the test for
// operands that they do not serve: a branch here would keep the chains of several values from
// running side by side. small_bench compares every d with div32.
ARITH_HD float reciprocal32(float d) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
  y = __fmaf_rn(y, __fmaf_rn(-d, y, 1.0f), y);
  return __fmaf_rn(y, __fmaf_rn(-d, y, 1.0f), y);
#else
  return 1.0f / d;
#endif
}

ARITH_HD double div64(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

}  // namespace vcuda::arith
