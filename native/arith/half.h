// float16 and bfloat16 by integer operations: the same bits on every compiler and device.
#pragma once

#include <cstdint>

#include "arith/hd.h"

namespace vcuda::arith {

// Exact, denormals included; Inf and NaN keep their class.
ARITH_HD float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u,
                 mantissa = h & 1023u;
  if (exponent == 31) return as_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return as_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-08f;  // 2^-24, exact
  return sign ? -magnitude : magnitude;
}

// Round to nearest even; overflow gives Inf.
ARITH_HD uint16_t float_to_half(float x) {
  const uint32_t bits = as_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
  uint32_t shift = 13, value = magnitude - (112u << 23);
  if (magnitude < 0x38800000u) {  // below 2^-14: a denormal half, units of 2^-24
    if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // below 2^-25
    shift = 126u - (magnitude >> 23);
    value = (magnitude & 0x7fffffu) | 0x800000u;
  }
  const uint32_t rest = value & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
  uint32_t result = value >> shift;
  if (rest > tie || (rest == tie && (result & 1u))) ++result;  // a carry into the exponent is right
  return static_cast<uint16_t>(sign | result);
}

ARITH_HD float bfloat_to_float(uint16_t b) { return as_float(static_cast<uint32_t>(b) << 16); }

// Round to nearest even.
ARITH_HD uint16_t float_to_bfloat(float x) {
  const uint32_t bits = as_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace vcuda::arith
