// sin and cos in float64, for rotary angles.
//
//   sincos64   rounded to float32: the nearest; at most 0.49999999 ulp, at 801.88810231070966
//
// Measured over positions 0 .. 2^18 - 1 at 64 frequencies from 1 to 1e-7, 33554432 values
// (tools/ulp).
#pragma once

#include "arith/hd.h"

namespace vcuda::arith {

// sin(x) and cos(x) for |x| <= 2^30; an infinity or NaN gives NaN. Not for larger x.
ARITH_HD void sincos64(double x, double& s, double& c) {
  // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
  const double shifted = fma64(x, 0x1.45f306dc9c883p-1, 0x1.8p+52);  // 2 / pi
  const double k = shifted - 0x1.8p+52;
  const uint64_t quadrant = as_bits(shifted);

  // r = x - k * pi / 2, |r| <= pi / 4. The first step is exact: a multiple of 2^-53 below 1.
  double r = fma64(k, -0x1.921fb54442d18p+0, x);
  r = fma64(k, -0x1.1a62633145c07p-54, r);
  const double z = r * r;

  // sin r = r + r^3 * p(r^2), cos r = 1 - r^2 / 2 + r^4 * q(r^2), both minimax.
  double p = fma64(z, 0x1.5d9393cc3b689p-33, -0x1.ae5e686b81030p-26);
  p = fma64(z, p, 0x1.71de357ae3689p-19);
  p = fma64(z, p, -0x1.a01a019c15e67p-13);
  p = fma64(z, p, 0x1.111111110f8a5p-7);
  p = fma64(z, p, -0x1.5555555555549p-3);
  const double sin_r = fma64(r * z, p, r);

  double q = fma64(z, -0x1.8fa6711ed5471p-37, 0x1.1ee9dbadfb28fp-29);
  q = fma64(z, q, -0x1.27e4f7f1689c1p-22);
  q = fma64(z, q, 0x1.a01a019c8efa8p-16);
  q = fma64(z, q, -0x1.6c16c16c15014p-10);
  q = fma64(z, q, 0x1.555555555554bp-5);
  const double cos_r = fma64(z * z, q, fma64(z, -0.5, 1.0));

  // Quadrants 0..3: (s, c), (c, -s), (-s, -c), (-c, s).
  const bool odd = (quadrant & 1u) != 0;
  const uint64_t s_sign = (quadrant & 2u) << 62;
  const uint64_t c_sign = ((quadrant + 1u) & 2u) << 62;
  s = as_double(as_bits(odd ? cos_r : sin_r) ^ s_sign);
  c = as_double(as_bits(odd ? sin_r : cos_r) ^ c_sign);
}

}  // namespace vcuda::arith
