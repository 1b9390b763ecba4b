// exp in float32.
//
//   exp32   at most 0.7706 ulp, at 0xc2af6928 (-87.7053833), a denormal result; normal ones 0.6833
//
// Measured over every float32 (tools/ulp). No float32 has a smaller result than the one before it.
// No rounded product is added to anything without an explicit fma, here and in log1p.h and
// activations.h: a compiler that contracts finds nothing.
#pragma once

#include "arith/hd.h"

namespace vcuda::arith {

// 2^n for n in [-126, 127].
ARITH_HD float pow2(int32_t n) { return as_float(static_cast<uint32_t>(n + 127) << 23); }

// p * 2^n for n in [-252, 254] and p near 1. The first product is exact, so the result is rounded
// once, also when it is denormal; above the range it is infinite.
ARITH_HD float scale_pow2(float p, int32_t n) {
  const int32_t half = n >> 1;
  return p * pow2(half) * pow2(n - half);
}

// A value (hi + lo) * 2^n with |lo| <= ulp(hi) / 2: some bits more than a float, and no underflow.
struct Scaled {
  float hi, lo;
  int32_t n;
};

// e^x for |x| <= 2^8, or NaN. hi lies in [0.70, 1.42]; the relative error of hi + lo is below
// 2^-27.
ARITH_HD Scaled exp_scaled(float x) {
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const float shifted = fma32(x, 0x1.715476p+0f, 0x1.8p+23f);  // log2(e)
  const float k = shifted - 0x1.8p+23f;
  const int32_t n = static_cast<int32_t>(as_bits(shifted) - as_bits(0x1.8p+23f));

  // r + r_lo = x - k * ln(2). The first step is exact: both sides are multiples of 2^-25, the
  // difference is below 0.35.
  const float a = fma32(k, -0x1.62e430p-1f, x);
  const float r = fma32(k, 0x1.05c610p-29f, a);
  const float r_lo = fma32(k, 0x1.05c610p-29f, a - r);

  // e^r = 1 + r + r^2 * q(r), q minimax on |r| <= ln(2) / 2.
  float q = fma32(r, 0x1.6ab8d2p-10f, 0x1.123d72p-7f);
  q = fma32(r, q, 0x1.55585ap-5f);
  q = fma32(r, q, 0x1.55548cp-3f);
  q = fma32(r, q, 0x1.fffffcp-2f);

  const float s = 1.0f + r;
  const float s_lo = (1.0f - s) + r;
  const float tail = fma32(r * r, q, s_lo + r_lo);
  const float hi = s + tail;
  return {hi, (s - hi) + tail, n};
}

// +0 below -104, +inf above 88.73, exactly 1 at 0; denormal results are rounded correctly like the
// others.
ARITH_HD float exp32(float x) {
  // Written as selects that let a NaN through.
  const float below = x > 89.0f ? 89.0f : x;
  const float clamped = below < -105.0f ? -105.0f : below;
  const Scaled e = exp_scaled(clamped);
  return scale_pow2(e.hi, e.n);
}

}  // namespace vcuda::arith
