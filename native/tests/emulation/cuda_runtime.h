// Stands in for CUDA's header where kernels are compiled as C++ of the host: the part of CUDA that
// the emulated kernels use, on the threads of emulation.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "emulation.h"

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
// What a block shares outlives its threads' functions, also where it is declared extern. One thread
// of the host runs everything, so there is one of it.
#define __shared__ thread_local

using emulation::blockDim;
using emulation::blockIdx;
using emulation::dim3;
using emulation::gridDim;
using emulation::threadIdx;
using std::max;
using std::min;

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline int __float_as_int(float x) { return bits_as<int>(x); }
inline float __int_as_float(int x) { return bits_as<float>(x); }

template <class T>
T __ldcg(const T* p) {
  return *p;
}

template <class T>
void __stcg(T* p, T x) {
  *p = x;
}
inline void __threadfence() {}
inline int atomicAdd(int* p, int x) { return std::exchange(*p, *p + x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

inline void __syncthreads() { emulation::meet_block(); }
inline void __syncwarp() { emulation::meet_warp(0); }

// Of all lanes' values, those that the kernels name with a full mask.
template <class T>
T of_lane(T x, unsigned lane) {
  return bits_as<T>(emulation::meet_warp(bits_as<uint32_t>(x))[lane]);
}
template <class T>
T __shfl_sync(unsigned, T x, int lane) {
  return of_lane(x, static_cast<unsigned>(lane) % 32);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, unsigned mask) {
  return of_lane(x, (threadIdx.x % 32) ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T x, unsigned n) {
  const unsigned lane = threadIdx.x % 32;
  return of_lane(x, lane < n ? lane : lane - n);
}
template <class T>
T __shfl_down_sync(unsigned, T x, unsigned n) {
  const unsigned lane = threadIdx.x % 32;
  return of_lane(x, lane + n < 32 ? lane + n : lane);
}
template <class T>
T __reduce_max_sync(unsigned, T x) {
  const uint32_t* all = emulation::meet_warp(bits_as<uint32_t>(x));
  for (int i = 0; i < 32; ++i) x = max(x, bits_as<T>(all[i]));
  return x;
}
inline unsigned __ballot_sync(unsigned, bool x) {
  const uint32_t* all = emulation::meet_warp(x);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= all[i] << i;
  return bits;
}
inline int __reduce_add_sync(unsigned, int x) {
  const uint32_t* all = emulation::meet_warp(bits_as<uint32_t>(x));
  uint32_t sum = 0;
  for (int i = 0; i < 32; ++i) sum += all[i];
  return bits_as<int>(sum);
}
// Bytes of y:x (x has 0 .. 3) that the four low nibbles of `selector` name.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned r = 0;
  for (unsigned i = 0; i < 4; ++i)
    r |= static_cast<unsigned>(both >> (selector >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
  return r;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
}
