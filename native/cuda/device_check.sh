#!/usr/bin/env bash
# On a machine with a GPU: builds both libraries and the tools, then checks and measures. device_check.sh STAGE ...
#   bits: the CUDA library against the CPU library   kernels: kernel_bench   step: step_bench   sanitize: compute-sanitizer
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
jobs=$(nproc) out=${OUT:-build} status=0
architectures=${ARCHITECTURES:-90a-real}
cmake -S native -B build/cpu -DCMAKE_BUILD_TYPE=Release >/dev/null && cmake --build build/cpu -j "$jobs" --target vllm_cuda >"$out/build-cpu.log" 2>&1 & cpu=$!
cmake -S native -B build/cuda -DCMAKE_BUILD_TYPE=Release -DVCUDA_BACKEND=cuda "-DCMAKE_CUDA_ARCHITECTURES=$architectures" >/dev/null &&
  cmake --build build/cuda -j "$jobs" >"$out/build-cuda.log" 2>&1 || { tail -30 "$out/build-cuda.log"; exit 1; }
wait "$cpu" || { tail -30 "$out/build-cpu.log"; exit 1; }
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader

bits() { timeout 150 python3 native/tests/test_cuda.py build/cpu/libvllm_cuda.so build/cuda/libvllm_cuda.so "$@"; }
for stage in "$@"; do
  echo "== $stage ($SECONDS s)"
  case $stage in
    bits) bits --sizes tiny ${GOLDEN:+--golden "$GOLDEN"} && bits --sizes mid --prefixes 0,5,64,200 --rows 1,2,5,8 &&
            VLLM_CUDA_STREAMED=1 bits --sizes tiny --prefixes 0,63,200 ;;
    quick) bits --sizes tiny --prefixes 0,5,63,65,200 ${GOLDEN:+--golden "$GOLDEN"} && bits --sizes mid --families hybrid --prefixes 0,5 --rows 1,3,8 ;;
    kernels) build/cuda/kernel_bench ;;
    modes) VLLM_CUDA_FUSED=0 bits --sizes tiny --prefixes 0,63,65 && VLLM_CUDA_STREAMED=1 bits --sizes tiny --prefixes 0,63,65 &&
             for tiles in 0 2 5 7 8 11; do echo "tiles $tiles"; VLLM_CUDA_Q4_TILES=$tiles bits --sizes tiny --families hybrid --prefixes 0,5 || exit 1; done ;;
    step) timeout 120 build/cuda/step_bench ${STEP_ARGUMENTS:-} ;;
    phases) VLLM_CUDA_PROFILE=phases timeout 60 build/cuda/step_bench --no-check --m 1,8 --repeats 8 ${STEP_ARGUMENTS:-} ;;
    single) VLLM_CUDA_FUSED=0 timeout 120 build/cuda/step_bench --m 1,8 ${STEP_ARGUMENTS:-} ;;
    long) timeout 120 build/cuda/step_bench --no-check --context 32768 --m 1,8 --repeats 8 ;;
    profile) VLLM_CUDA_PROFILE=1 timeout 60 build/cuda/step_bench --no-check --m 1,8 --repeats 8 ${STEP_ARGUMENTS:-} ;;
    sanitize) for tool in memcheck racecheck initcheck synccheck; do
                compute-sanitizer --tool $tool --error-exitcode 9 python3 native/tests/test_cuda.py build/cpu/libvllm_cuda.so build/cuda/libvllm_cuda.so \
                  --sizes tiny --families hybrid --prefixes 0,64 --rows 1,2,8 2>&1 | tail -5 || status=1
              done ;;
    *) echo "no stage $stage" >&2; exit 2 ;;
  esac || { echo "stage $stage failed"; status=1; break; }
done
echo "done in $SECONDS s, status $status"
exit $status
