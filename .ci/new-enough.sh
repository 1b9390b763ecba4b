#!/bin/sh
# new-enough.sh TOOL MAJOR.MINOR: print the path of TOOL when the one on PATH runs and is at least that version.
# Not the one in .venv, also when that is active: another cmake than the one before would build everything again.
PATH=$(printf %s "$PATH" | tr : '\n' | grep -vxF "${VIRTUAL_ENV:-none}/bin" | paste -sd : -)
path=$(command -v "$1") && version=$("$path" --version 2>/dev/null) || exit 1
version=$(echo "$version" | sed -n '1s/^[^0-9]*\([0-9][0-9.]*\).*/\1/p')
[ -n "$version" ] && [ "$(printf '%s\n%s\n' "$2" "$version" | sort -V | head -n 1)" = "$2" ] && echo "$path"
