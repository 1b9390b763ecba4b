// float16 and bfloat16: every number of both against its definition, and what lies between two of
// them to the nearest, ties to even. Prints one line a failure; exit 1 then.
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "arith/half.h"

namespace {

using namespace vcuda::arith;

int failures = 0;

void expect(bool ok, const char* what, unsigned bits) {
  if (!ok && ++failures < 10) std::printf("%s: wrong at 0x%04x\n", what, bits);
}

// Of a type with 5 or 8 bits of exponent: the number that the bits stand for, in float64.
double meaning(unsigned bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000u ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? std::nan("") : sign * INFINITY;
  const int whole = exponent ? mantissa + (1 << mantissa_bits) : mantissa;
  return sign * std::ldexp(whole, (exponent ? exponent : 1) - bias - mantissa_bits);
}

template <class Read, class Write>
void check(const char* what, int exponent_bits, const Read& read, const Write& write) {
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    const uint16_t h = static_cast<uint16_t>(bits);
    const double expected = meaning(bits, exponent_bits);
    const float x = read(h);
    if (std::isnan(expected)) {
      expect(std::isnan(x) && std::isnan(read(write(x))), what, bits);
      continue;
    }
    expect(static_cast<double>(x) == expected && std::signbit(x) == std::signbit(expected), what,
           bits);
    expect(write(x) == h, what, bits);
    const uint16_t next = static_cast<uint16_t>(h + 1);  // away from zero
    const double after = meaning(next, exponent_bits);
    if (!std::isfinite(expected) || !std::isfinite(after)) continue;
    const float middle = static_cast<float>((expected + after) / 2);
    expect(write(middle) == (h & 1u ? next : h), what, bits);
    expect(write(std::nextafter(middle, x)) == h, what, bits);
    expect(write(std::nextafter(middle, read(next))) == next, what, bits);
  }
}

}  // namespace

int main() {
  check(
      "float16", 5, [](uint16_t h) { return half_to_float(h); },
      [](float x) { return float_to_half(x); });
  check(
      "bfloat16", 8, [](uint16_t b) { return bfloat_to_float(b); },
      [](float x) { return float_to_bfloat(x); });
  expect(float_to_half(65519.996f) == 0x7bffu, "the largest float16", 0x7bffu);
  expect(float_to_half(65520.0f) == 0x7c00u, "beyond the largest float16", 0x7c00u);
  return failures != 0;
}
