// ln(1 + x) in float32.
//
//   log1p32   at most 0.8306 ulp, at 0x3eaaefb7 (0.333860129)
//
// Measured over every float32 (tools/ulp). No float32 has a smaller result than the one before it.
#pragma once

#include "arith/hd.h"

namespace vcuda::arith {

// A value hi + lo, lo small beside hi.
struct Pair {
  float hi, lo;
};

// ln(1 + x + x_lo) for finite x > -1 and |x_lo| <= ulp(x) / 2, or NaN.
ARITH_HD Pair log1p_pair(float x, float x_lo) {
  const float u = 1.0f + x;
  const float c = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);  // u + c = 1 + x, exactly

  // u = m * 2^k with m in [2/3, 4/3).
  const uint32_t two_thirds = 0x3f2aaaabu;
  const uint32_t above = as_bits(u) - two_thirds;
  const int32_t k = static_cast<int32_t>(above) >> 23;
  const float m = as_float((above & 0x007fffffu) + two_thirds);

  // 1 + f + f_lo = (u + c + x_lo) * 2^-k. Where k would leave the range of 2^-k, c is far below the
  // last bit.
  const float down = as_float(static_cast<uint32_t>(127 - (k > 126 ? 126 : k)) << 23);
  const float f0 = m - 1.0f;
  const float c_scaled = c * down;
  const float f = f0 + c_scaled;
  const float f_lo = (c_scaled - (f - f0)) + x_lo * down;

  // ln(1 + f) = f - f^2 / 2 + f^3 * q(f), q minimax on |f| <= 1/3.
  float q = fma32(f, 0x1.ebd77ap-4f, -0x1.071418p-3f);
  q = fma32(f, q, 0x1.b87c98p-4f);
  q = fma32(f, q, -0x1.f388d2p-4f);
  q = fma32(f, q, 0x1.24f49ep-3f);
  q = fma32(f, q, -0x1.559910p-3f);
  q = fma32(f, q, 0x1.99977ep-3f);
  q = fma32(f, q, -0x1.ffff0ep-3f);
  q = fma32(f, q, 0x1.555556p-2f);

  // k * ln(2) + f, then all the small parts. k * 0x1.62e4p-1 is exact; d ln(1 + f) = df / (1 + f),
  // about df * (1 - f).
  const float kf = static_cast<float>(k);
  const float k_ln2 = kf * 0x1.62e4p-1f;
  const float s = k_ln2 + f;
  const float s_lo = f - (s - k_ln2);
  const float small = fma32(kf, 0x1.7f7d1cp-20f, fma32(-f_lo, f, f_lo));
  const float square = fma32(-0.5f * f, f, s_lo + small);
  return {s, fma32(f * f * f, q, square)};
}

// -inf at -1, NaN below; log1p32(-0) is -0.
ARITH_HD float log1p32(float x) {
  const Pair l = log1p_pair(x, 0.0f);
  float y = l.hi + l.lo;
  y = as_float(as_bits(x) & 0x7fffffffu) < 0x1p-30f ? x : y;
  y = x > FLT_MAX ? x : y;
  y = x == -1.0f ? as_float(0xff800000u) : y;
  return x < -1.0f ? as_float(0x7fc00000u) : y;
}

}  // namespace vcuda::arith
