#!/bin/sh
# Say in one line each what this machine lacks for a build: python3 3.11 to 3.14 with venv, make, a C++17 compiler.
# CXX and PYTHON name others. Exit 1 when something is missing.
python=${PYTHON:-python3}
missing=0
lack() { echo "missing: $1" >&2; missing=1; }

if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
  lack "Python 3.11 to 3.14 as '$python' (found: $("$python" --version 2>&1 | tail -n 1)): install python3, or name one with 'make PYTHON=...'"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  lack "the module venv of '$python': install python3-venv"
fi
command -v make >/dev/null 2>&1 || lack "make: install make"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cat >"$work/try.cpp" <<'CPP'
#include <optional>
#include <thread>
int main() {
  std::optional<int> answer;
  std::thread([&] { answer = 0; }).join();
  if (auto value = answer; value.has_value()) return *value;
  return 1;
}
CPP
compiles() { "$1" -std=c++17 -pthread "$work/try.cpp" -o "$work/try" 2>/dev/null && "$work/try"; }
found=
for cxx in ${CXX:-c++ g++ clang++}; do
  if compiles "$cxx"; then found=$cxx; break; fi
done
[ -n "$found" ] || lack "a C++17 compiler that compiles and links (tried: ${CXX:-c++ g++ clang++}): install g++, or name one with CXX=..."
exit $missing
