// sigmoid, silu and softplus in float32.
//
//   sigmoid32    at most 0.7706 ulp, at 0xc2af6928 (-87.7053833)
//   silu32       at most 0.8283 ulp, at 0xc2b7c0d5 (-91.8766251)
//   softplus32   at most 0.8786 ulp, at 0xbf8a9c6e (-1.08289886)
//
// Measured over every float32 (tools/ulp). Sigmoid never decreases from one float32 to the next.
#pragma once

#include "arith/exp.h"
#include "arith/log1p.h"

namespace vcuda::arith {

// -|x|, at least -128: beyond it each function below has reached its limit. A NaN passes.
ARITH_HD float negative_abs_clamped(float x) {
  const float a = as_float(as_bits(x) | 0x80000000u);
  return a < -128.0f ? -128.0f : a;
}

// 1 / (1 + e^-x). With t = e^-|x| it is 1 / (1 + t) or, for negative x, t / (1 + t); the power of
// two of that t is left out of hi + lo, so that a tiny result is rounded once, by whoever applies
// it.
ARITH_HD Scaled sigmoid_scaled(float x) {
  const Scaled e = exp_scaled(negative_abs_clamped(x));
  const float t_unit = pow2(e.n < -126 ? -126 : e.n);  // a smaller t is lost beside 1 anyway
  const float t = e.hi * t_unit;
  const float d = 1.0f + t;
  const float d_lo = ((1.0f - d) + t) + e.lo * t_unit;

  const bool negative = x < 0.0f;
  const float num = negative ? e.hi : 1.0f;
  const float num_lo = negative ? e.lo : 0.0f;

  // (num + num_lo) / (d + d_lo): a quotient from the reciprocal, corrected by its remainder.
  const float inv = reciprocal32(d);
  const float q = num * inv;
  const float rest = fma32(-q, d_lo, fma32(-q, d, num) + num_lo);
  return {q, rest * inv, negative ? e.n : 0};
}

ARITH_HD float sigmoid32(float x) {
  const Scaled s = sigmoid_scaled(x);
  return scale_pow2(s.hi + s.lo, s.n);
}

// x * sigmoid(x); -0 at -0 and at -inf.
ARITH_HD float silu32(float x) {
  const Scaled s = sigmoid_scaled(x);
  const float clamped = x < -128.0f ? -128.0f : x;
  const float y = scale_pow2(fma32(clamped, s.hi, clamped * s.lo), s.n);
  return x > 32.0f ? x : y;
}

// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|).
ARITH_HD float softplus32(float x) {
  const Scaled e = exp_scaled(negative_abs_clamped(x));
  const Pair l = log1p_pair(scale_pow2(e.hi, e.n), scale_pow2(e.lo, e.n));
  const float linear = x > 0.0f ? x : 0.0f;
  const float s = linear + l.hi;
  const float back = s - linear;
  const float s_lo = (linear - (s - back)) + (l.hi - back);
  const float y = s + (s_lo + l.lo);
  return x > 32.0f ? x : y;
}

}  // namespace vcuda::arith
