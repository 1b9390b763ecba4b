// Synthetic weights from a counter-based generator: keyed by seed, tensor name and index, so any
// thread, block or program makes any element by itself and all make the same bytes.
#pragma once

#include <cstdint>

#include "arith/half.h"
#include "arith/hd.h"

namespace vcuda::arith {

ARITH_HD uint64_t synth_mix(uint64_t z) {
  z ^= z >> 30;
  z *= 0xbf58476d1ce4e5b9ull;
  z ^= z >> 27;
  z *= 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// One tensor's stream: word(i) for i = 0, 1, ...; key is the FNV-1a (64 bit) of the tensor's name.
struct SynthStream {
  uint64_t base;
  ARITH_HD static SynthStream of(uint64_t seed, uint64_t key) {
    return {synth_mix(seed + 0x9e3779b97f4a7c15ull * (key | 1u))};
  }
  ARITH_HD uint64_t word(uint64_t i) const {
    return synth_mix(base + 0x9e3779b97f4a7c15ull * (i + 1));
  }
};

// Element i of a float tensor: uniform in [offset - scale, offset + scale), in steps of scale *
// 2^-23.
ARITH_HD float synth_float(SynthStream s, uint64_t i, float offset, float scale) {
  const float z = static_cast<float>(static_cast<int32_t>(s.word(i) >> 40) - (1 << 23)) *
                  1.1920928955078125e-07f;
  return scale * z + offset;  // rounded twice: no fma
}

// Q4: word(j) holds the 16 nibbles of weights 16j .. 16j+15 (C order), lowest first; scales have
// words of their own. A scale's sign is random, since nibbles have the mean -0.5: a shift common to
// all rows would grow from layer to layer and drown the rest.
ARITH_HD uint16_t synth_scale(SynthStream s, uint64_t group, float scale) {
  const uint64_t word = s.word((1ull << 40) + group);
  const float spread = static_cast<float>(word >> 40) * 2.98023223876953125e-08f;  // [0, 0.5)
  return static_cast<uint16_t>(float_to_half(scale * (0.75f + spread)) ^ ((word & 1u) << 15));
}

}  // namespace vcuda::arith
