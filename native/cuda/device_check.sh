#!/usr/bin/env bash
# On a machine with a GPU: builds both libraries and the tools, then checks and measures. device_check.sh STAGE ...
#   bits, graphs, cuts, extremes, taps, memory: test_cuda.py   ampere: the code for older devices, compiled by the driver   kernels, sweep: kernel_bench   small: small_bench   step: step_bench   races: one step thousands of times   sanitize: compute-sanitizer
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
    kernels) build/cuda/kernel_bench --json "$out/kernels.json" ;;
    small) build/cuda/small_bench ;;
    sweep) build/cuda/kernel_bench --cuts --table "$out/cuts.h" ;;
    graphs) bits --checks graphs ;;
    extremes) bits --checks extremes ;;
    ampere) cmake -S native -B build/cuda80 -DCMAKE_BUILD_TYPE=Release -DVCUDA_BACKEND=cuda -DCMAKE_CUDA_ARCHITECTURES=80-virtual >/dev/null &&
              cmake --build build/cuda80 -j "$jobs" --target vllm_cuda >"$out/build-cuda80.log" 2>&1 &&
              timeout 150 python3 native/tests/test_cuda.py build/cpu/libvllm_cuda.so build/cuda80/libvllm_cuda.so --checks bits,extremes --prefixes 0,5,63,65,200 ;;
    cuts) bits --checks cuts --families hybrid --prefixes 0,5 && build/cuda/kernel_bench --cuts ;;
    taps) bits --checks taps --sizes tiny,mid ;;
    memory) bits --checks memory --sizes tiny,mid --families hybrid ;;
    modes) bits --checks graphs,cuts --families hybrid --prefixes 0,5 ;;
    attention) build/cuda/q35_attn_m ;;
    step) timeout 120 build/cuda/step_bench ${STEP_ARGUMENTS:-} ;;
    races) timeout 300 build/cuda/step_bench --no-check --m 3,8 --repeats "${RACES:-4000}" ;;
    long) timeout 120 build/cuda/step_bench --no-check --context 32768 --m 1,8 --repeats 8 ;;
    profile) VLLM_CUDA_PROFILE=1 timeout 60 build/cuda/step_bench --no-check --m 1,8 --repeats 8 ${STEP_ARGUMENTS:-} ;;
    ncu) for m in 1 8; do
           VLLM_CUDA_STREAMED=1 timeout 120 ncu --clock-control none --csv --metrics gpu__time_duration.sum -k 'regex:rms|project|gdn|attention|swiglu|check|embed' \
             --launch-skip 1600 --launch-count 514 build/cuda/step_bench --no-check --m $m --repeats 2 >"$out/ncu-$m.csv" 2>"$out/ncu.err"
           python3 - "$out/ncu-$m.csv" $m <<'PY'
import collections, csv, re, sys
rows = [r for r in csv.reader(line for line in open(sys.argv[1]) if line.startswith('"'))]
name, value, unit, grid = (rows[0].index(c) for c in ("Kernel Name", "Metric Value", "Metric Unit", "Grid Size"))
total = collections.defaultdict(lambda: [0, 0.0])
for r in rows[1:]:
    scale = {"ns": 1e-3, "us": 1.0, "usecond": 1.0, "nsecond": 1e-3, "ms": 1e3}[r[unit]]
    t = total[re.sub(r"\(.*", "", r[name])[-34:] + " " + r[grid]]
    t[0] += 1
    t[1] += float(r[value].replace(",", "")) * scale
print(f"M = {sys.argv[2]}: time of each kernel alone")
for key, (count, us) in sorted(total.items()):
    print(f"{key:52s} {count:4d} {us:9.1f} us {us / count:8.2f} us each")
print(f"sum {sum(us for _, us in total.values()):.1f} us")
PY
         done ;;
    sanitize) # 2026.4 or later: 2025.3's racecheck ends with an internal error (NOTES.md)
              # 8 tiles: a cut whose kernels make the norm in front of them; racecheck does not end there within a minute
              for run in memcheck synccheck initcheck "racecheck --racecheck-filter-cluster-id 0" memcheck,8 synccheck,8 initcheck,8; do
                tool=${run%,*} tiles=${run#"$tool"} tiles=${tiles#,} log=$out/${tool%% *}$tiles.log
                env ${tiles:+VLLM_CUDA_Q4_TILES=$tiles} timeout 120 ${SANITIZER:-compute-sanitizer} --tool $tool --error-exitcode 9 --num-cuda-barriers 64 --show-backtrace device \
                  python3 native/tests/test_cuda.py build/cpu/libvllm_cuda.so build/cuda/libvllm_cuda.so \
                  --families hybrid --prefixes 0 --rows 1,2,5,8 >"$log" 2>&1 || status=1
                echo "$run: $(tail -1 "$log")"
              done ;;
    *) echo "no stage $stage" >&2; exit 2 ;;
  esac || { echo "stage $stage failed"; status=1; break; }
done
echo "done in $SECONDS s, status $status"
exit $status
