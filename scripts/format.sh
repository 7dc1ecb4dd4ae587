#!/usr/bin/env bash
# scripts/format.sh [--check] [--all | files...]
# Formats our C++ files that differ from HEAD (or all, or those named) with clang-format 14; --check
# only tells which would change.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$repo"

tool="$(command -v clang-format-14 || command -v clang-format)" || die "clang-format 14 is missing"
"$tool" --version | grep -q ' version 14\.' || die "clang-format 14 is needed, this is another version"

mode=(-i)
if [[ "${1:-}" == --check ]]; then
  mode=(--dry-run --Werror)
  shift
fi
if [[ "${1:-}" == --all ]]; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cpp')
elif (($#)); then
  files=("$@")
else
  mapfile -t files < <(
    {
      git diff --name-only --diff-filter=d HEAD -- '*.h' '*.cpp' 2> /dev/null
      git ls-files --others --exclude-standard -- '*.h' '*.cpp'
    } | sort -u)
fi
((${#files[@]})) || exit 0
"$tool" "${mode[@]}" "${files[@]}"
