#include "cpu/isa.h"

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "model/error.h"

namespace vcuda {
namespace {

#if defined(__x86_64__)
bool has_f16c() {  // clang's __builtin_cpu_supports does not know it before version 15
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

}  // namespace

const Isa& choose_isa() {
  struct Choice {
    const Isa* isa;
    bool runs;
  } choices[] = {
#if defined(__x86_64__)
    {&kAvx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vnni")},
    {&kAvx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()},
#endif
    {&kPortable, true},
  };
  const char* forced = std::getenv("VLLM_CUDA_CPU_ISA");
  const bool any = !forced || !*forced;
  for (const Choice& c : choices) {
    if (any && c.runs) return *c.isa;
    if (any || std::strcmp(forced, c.isa->name) != 0) continue;
    if (!c.runs)
      fail(VCUDA_E_UNSUPPORTED, "VLLM_CUDA_CPU_ISA is '%s', which this processor lacks", forced);
    return *c.isa;
  }
  fail(VCUDA_E_ARGUMENT, "VLLM_CUDA_CPU_ISA is '%s', must be portable, avx2 or avx512", forced);
}

}  // namespace vcuda
