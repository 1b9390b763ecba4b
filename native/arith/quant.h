// Activations of the 4-bit projections: 22-bit block fixed point, groups of 32 (bits contract,
// section 3).
//
// For a row's group: a = max|x|, e = floor(log2 a) but at least -100; q = rint(x * 2^(21-e)), |q|
// <= 2^22, scale 2^(e-21). q = d2*65536 + d1*256 + d0 with signed 8-bit digits. a = 0: all zero.
// A NaN, an infinity or an |x| from 2^109 up in the group makes the scale NaN, so that it reaches
// the step's outputs and is refused there: integers alone would hide it, and below 2^109 every way
// of forming the terms stays finite. y = sum over groups, kQ4Lanes lanes, each term fma(float(c),
// weight_scale * scale, lane), c = sum w*q exact in int32.
#pragma once

#include <cstdint>

#include "arith/bits.h"
#include "arith/hd.h"

namespace vcuda::arith {

// Largest |x| of a group as bits (comparing magnitudes as integers also puts NaN above everything)
// -> e, or 128 for "not finite" and what is treated alike.
ARITH_HD int group_exponent(uint32_t max_magnitude_bits) {
  const int e = static_cast<int>(max_magnitude_bits >> 23) - 127;
  return e < kMinExponent ? kMinExponent : e > kMaxExponent ? 128 : e;
}

ARITH_HD float exponent_to_scale(
    int e) {  // 2^(e-21): e in [-100, 108], a normal number; NaN when not finite
  return as_float(e > 127 ? 0x7fc00000u : static_cast<uint32_t>(e - 21 + 127) << 23);
}

// q for x, |x| < 2^(e+1). The factor 2^(21-e) is up to 2^121 and at least 2^-87: a normal number,
// the product is exact or rounds once in the denormals, which rint then takes to 0.
ARITH_HD int32_t fixed_point(float x, int e) {
  const float factor = as_float(static_cast<uint32_t>(21 - e + 127) << 23);
  // To nearest, ties to even: adding 1.5 * 2^23 leaves an integer in the low mantissa bits; good
  // for |value| <= 2^22.
  return static_cast<int32_t>(as_bits(x * factor + 12582912.0f) - 0x4b400000u);
}

// Signed digits, each in [-128, 127]; d2 is in [-64, 64].
ARITH_HD void split_digits(int32_t q, int8_t& d2, int8_t& d1, int8_t& d0) {
  d0 = static_cast<int8_t>(q);
  const int32_t q1 = (q - d0) >> 8;
  d1 = static_cast<int8_t>(q1);
  d2 = static_cast<int8_t>((q1 - d1) >> 8);
}

// The same as bytes of one word, digit 0 lowest; the highest byte is rest.
ARITH_HD uint32_t digit_bytes(int32_t q) {
  // What the addition carries out of a digit is what a signed digit takes from the next.
  return (static_cast<uint32_t>(q) + 0x00008080u) ^ 0x00008080u;
}

}  // namespace vcuda::arith
