#!/usr/bin/env bash
# Two builds of one tree in two folders must be the same bytes: repro.sh cpu|cuda
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
backend=${1:?cpu or cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for folder in "$work/a" "$work/another-folder"; do
  mkdir "$folder"
  cp -r native "$folder/native"
  "${CMAKE:-cmake}" -S "$folder/native" -B "$folder/build" -G Ninja -DCMAKE_MAKE_PROGRAM="${NINJA:-ninja}" -DCMAKE_BUILD_TYPE=Release -DVCUDA_BACKEND="$backend" >"$folder/log"
  "${CMAKE:-cmake}" --build "$folder/build" --target vllm_cuda -j2 >>"$folder/log" || { tail -n 30 "$folder/log"; exit 1; }
done
one=$(sha256sum <"$work/a/build/libvllm_cuda.so") two=$(sha256sum <"$work/another-folder/build/libvllm_cuda.so")
[[ $one == "$two" ]] || { echo "repro: two builds of the $backend library differ: $one $two"; exit 1; }
echo "repro: two builds of the $backend library are the same bytes: ${one%% *}"
