#!/usr/bin/env bash
# scripts/test.sh [--asan | --tsan | --dev | --build-only] [arguments of ctest]
# Builds and tests the preset release, or one with sanitizers. Closes with the number of test cases.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=release
build_only=
while (($#)); do
  case "$1" in
    --asan | --tsan | --dev) preset="${1#--}" ;;
    --build-only) build_only=1 ;;
    *) break ;;
  esac
  shift
done

"$repo/scripts/setup.sh"
targets=()
if [[ "$preset" == tsan ]]; then targets=(fulmen_thread_tests); fi
build "$preset" ${targets[@]+"${targets[@]}"}
if [[ -n "$build_only" ]]; then exit 0; fi

results="$repo/build/$preset/test-results"
rm -rf "$results"
mkdir -p "$results"
code=0
(cd "$repo" && ctest --preset "$preset" --output-junit "$results/ctest.xml" -j "${CTEST_PARALLEL_LEVEL:-$(nproc)}" "$@") < /dev/null ||
  code=$?

# A ctest entry is a whole program: its cases are counted in GoogleTest's reports. A program that
# ended without one, and a check that is no program of GoogleTest, counts as one case.
"$repo/.venv/bin/python" "$repo/scripts/count_tests.py" "$repo/build/$preset" || code=1
exit "$code"
