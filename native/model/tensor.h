// Elements of the caller's tensors: stored bytes, or made on the spot by the generator
// (arith/synth.h).
#pragma once

#include <cstring>

#include "arith/half.h"
#include "arith/synth.h"
#include "vllm_cuda.h"

namespace vcuda {

inline arith::SynthStream synth_stream(const vcuda_tensor& t) {
  return arith::SynthStream::of(t.synth.seed, t.synth.key);
}

// Element i (C order) of a float tensor. Data may be unaligned: it can point into a mapped file.
inline float tensor_float(const vcuda_tensor& t, size_t i) {
  if (!t.data) {
    const float x = arith::synth_float(synth_stream(t), i, t.synth.offset, t.synth.scale);
    if (t.type == VCUDA_F16) return arith::half_to_float(arith::float_to_half(x));
    if (t.type == VCUDA_BF16) return arith::bfloat_to_float(arith::float_to_bfloat(x));
    return x;
  }
  const char* p = static_cast<const char*>(t.data);
  if (t.type == VCUDA_F32) {
    float x;
    std::memcpy(&x, p + i * 4, 4);
    return x;
  }
  uint16_t h;
  std::memcpy(&h, p + i * 2, 2);
  return t.type == VCUDA_F16 ? arith::half_to_float(h) : arith::bfloat_to_float(h);
}

// 16 consecutive Q4 weights, 16*block ..., as nibbles, lowest first.
inline uint64_t tensor_nibbles(const vcuda_tensor& t, size_t block) {
  if (!t.data) return synth_stream(t).word(block);
  uint64_t w;
  std::memcpy(&w, static_cast<const char*>(t.data) + block * 8, 8);
  return w;
}

// float16 scale of group g (C order over [rows, cols/32]).
inline uint16_t tensor_scale(const vcuda_tensor& t, size_t g) {
  if (!t.data) return arith::synth_scale(synth_stream(t), g, t.synth.scale);
  uint16_t h;
  std::memcpy(&h, static_cast<const char*>(t.scales) + g * 2, 2);
  return h;
}

}  // namespace vcuda
