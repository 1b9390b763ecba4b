#!/usr/bin/env bash
# An archived library must be what its own revision builds, byte for byte: rebuild.sh LABEL. Needs the history of the repository
# and the compilers that the library names. A library that was archived without its symbol table (cpu-m1) is held against the
# build that `strip` takes it from: code, data and build id are then the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
label=${1:-}
[[ $label ]] || { echo "rebuild: name an archived library: make rebuild LABEL=NAME (run-ab archive list)"; exit 2; }
facts=$(.venv/bin/run-ab archive log --json | .venv/bin/python -c '
import json, sys
found = [x for x in json.load(sys.stdin) if x["label"] == sys.argv[1]]
if not found: sys.exit(f"rebuild: no library is labelled {sys.argv[1]}")
if found[0]["dirty"]: sys.exit(f"rebuild: {sys.argv[1]} was built from changes that no revision holds")
print(*(found[0][k] for k in ("digest", "backend", "revision")))
' "$label")
read -r digest backend revision <<<"$facts"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --shared --no-checkout . "$work/source"
git -C "$work/source" checkout --quiet "$revision" || { echo "rebuild: no revision $revision here: a shallow checkout?"; exit 1; }
# nvcc's names for what one file keeps to itself follow from the generator: it is make's.
"${CMAKE:-cmake}" -S "$work/source/native" -B "$work/build" -G Ninja -DCMAKE_MAKE_PROGRAM="${NINJA:-ninja}" -DCMAKE_BUILD_TYPE=Release -DVCUDA_BACKEND="$backend" >"$work/log" 2>&1 &&
  "${CMAKE:-cmake}" --build "$work/build" --target vllm_cuda -j2 >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
digest_of() { echo "sha256:$(sha256sum <"$1" | cut -d ' ' -f 1)"; }
found=$(digest_of "$work/build/libvllm_cuda.so")
stripped=
if [[ $found != "$digest" ]]; then
  strip -o "$work/stripped.so" "$work/build/libvllm_cuda.so"
  [[ $(digest_of "$work/stripped.so") == "$digest" ]] && stripped=", without its symbol table (strip)"
fi
[[ $found == "$digest" || $stripped ]] || { echo "rebuild: $label is $digest, $revision builds $found"; exit 1; }
echo "rebuild: $label is what $revision builds$stripped: $digest"
