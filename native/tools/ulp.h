// The functions of arith/ beside a reference in a wider format, and the error between them in units
// of the last place. Used by tools/ulp.cpp (every input) and tests/test_arith.cpp (a sample).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "arith/activations.h"
#include "arith/exp.h"
#include "arith/hd.h"
#include "arith/log1p.h"

namespace vcuda::tools {

// References, for T = double (its error is below 2^-26 ulp of a float32) and T = long double.
template <typename T>
T ref_exp(T x) {
  return std::exp(x);
}
template <typename T>
T ref_log1p(T x) {
  return std::log1p(x);
}
template <typename T>
T ref_sigmoid(T x) {
  const T t = std::exp(-std::fabs(x));
  return (x < 0 ? t : T(1)) / (T(1) + t);
}
template <typename T>
T ref_silu(T x) {
  return x == -std::numeric_limits<T>::infinity() ? T(-0.0) : x * ref_sigmoid(x);
}
template <typename T>
T ref_softplus(T x) {
  return (x > 0 ? x : T(0)) + std::log1p(std::exp(-std::fabs(x)));
}

struct Function {
  const char* name;
  void (*block)(const float* x, float* y, int n);  // a loop the compiler may vectorise
  double (*ref)(double);
  long double (*ref_long)(long double);
  double bound_ulp;  // measured over every input, rounded up in the last digit
  uint64_t outputs;  // sum of digest_term over every float32: bits version 1
  bool increasing;   // no float32 has a smaller result than the float32 before it
};

#define VCUDA_BLOCK(f)                                 \
  [](const float* x, float* y, int n) {                \
    for (int i = 0; i < n; ++i) y[i] = arith::f(x[i]); \
  }

inline const Function kFunctions[] = {
    {"exp", VCUDA_BLOCK(exp32), ref_exp<double>, ref_exp<long double>, 0.7707, 0xd430db2e1b0190f1u,
     true},
    {"log1p", VCUDA_BLOCK(log1p32), ref_log1p<double>, ref_log1p<long double>, 0.8306,
     0xfe82dc04522bbba2u, true},
    {"sigmoid", VCUDA_BLOCK(sigmoid32), ref_sigmoid<double>, ref_sigmoid<long double>, 0.7707,
     0xa2531313668c3268u, true},
    {"silu", VCUDA_BLOCK(silu32), ref_silu<double>, ref_silu<long double>, 0.8283,
     0xf66e2fdb7cb891bau, false},
    {"softplus", VCUDA_BLOCK(softplus32), ref_softplus<double>, ref_softplus<long double>, 0.8786,
     0xfdcfc1e077b42db8u, false},
};
#undef VCUDA_BLOCK

// |got - want| in ulp of a float32 of want's size, 2^-149 for denormals. An infinity counts as
// 2^128. Infinite when only one of the two is a NaN or when zeros or signs differ.
template <typename T>
double ulp_error(float got, T want) {
  const double infinite = std::numeric_limits<double>::infinity();
  if (std::isnan(got) || std::isnan(want))
    return std::isnan(got) && std::isnan(want) ? 0.0 : infinite;
  if (std::signbit(got) != std::signbit(want)) return infinite;
  const T top = T(0x1p128);
  const T size = std::min(std::fabs(want), top);
  const T value = std::isinf(got) ? top : std::fabs(T(got));
  const int exponent = static_cast<int>(arith::as_bits(static_cast<double>(size)) >> 52) - 1023;
  const int last_place = std::clamp(exponent, -126, 127) - 23;
  const double per_ulp = arith::as_double(static_cast<uint64_t>(1023 - last_place) << 52);
  return static_cast<double>(std::fabs(value - size) * T(per_ulp));
}

// One (input, output) pair as a term of a digest that is a sum, so that any number of threads form
// it in any order. Every NaN is the same one: which of them comes out differs between chips.
ARITH_HD uint64_t digest_term(float in, float out) {
  const uint32_t bits = out != out ? 0x7fc00000u : arith::as_bits(out);
  uint64_t h = (static_cast<uint64_t>(arith::as_bits(in)) << 32 | bits) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
  return h ^ h >> 32;
}

}  // namespace vcuda::tools
