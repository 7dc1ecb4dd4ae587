#!/usr/bin/env bash
# scripts/mutations.sh
# Puts known mistakes into a copy of the sources, one at a time, and runs the tests of numbers on
# each: all must turn red. The sources as they are must be green. Takes some minutes; needs what
# scripts/test.sh has installed and is quick after it, because of ccache.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
say "copying the sources to $work"
git -C "$repo" ls-files -z --cached --others --exclude-standard |
  (cd "$repo" && xargs -0 cp --parents -t "$work")
torch="${FULMEN_TORCH_DIR:-$(echo "$venv"/lib/python3*/site-packages/torch)}"
(cd "$work" && cmake --preset release "-DFULMEN_TORCH_DIR=$torch" > /dev/null)

# Prints the number of tests that failed, or fails if the programs cannot be built.
failures() {
  (cd "$work" && cmake --build --preset release -j "$(jobs)" \
    --target strategies_equivalence_test strategies_test > "$work/build.log" 2>&1) ||
    { tail -30 "$work/build.log" >&2; die "the mutant does not build"; }
  local total=0 program report count
  for program in strategies_equivalence_test "strategies_test --gtest_filter=DdpNumbers.*"; do
    report="$work/report.xml"
    rm -f "$report"
    # shellcheck disable=SC2086
    OMP_NUM_THREADS=1 timeout 300 "$work"/build/release/tests/strategies/$program \
      "--gtest_output=xml:$report" > "$work/run.log" 2>&1 || true
    [[ -f "$report" ]] || { echo crashed; return; }
    count="$(sed -n '2s/.*<testsuites tests="[0-9]*" failures="\([0-9]*\)".*/\1/p' "$report")"
    total=$((total + count))
  done
  echo "$total"
}

# mutate <name> <file> <text> <replacement> [<text> <replacement>...]
missed=0
mutate() {
  local name="$1" file="$work/$2"
  shift 2
  cp "$file" "$work/original"
  while (($#)); do
    python3 - "$file" "$1" "$2" << 'PYTHON'
import sys
path, old, new = sys.argv[1:]
text = open(path).read()
if text.count(old) != 1:
    sys.exit(f"error: {path} has {text.count(old)} times: {old}")
open(path, "w").write(text.replace(old, new))
PYTHON
    shift 2
  done
  local count
  count="$(failures)"
  cp "$work/original" "$file"
  if [[ "$count" == 0 ]]; then
    missed=$((missed + 1))
    printf 'NOT SEEN  %s\n' "$name"
  else
    printf 'seen      %-45s %s tests red\n' "$name" "$count"
  fi
}

count="$(failures)"
[[ "$count" == 0 ]] || die "$count tests are red without a mutation"
echo "green     the sources as they are"

reducer=strategies/gradient_reducer.cpp
mutate "divided by the world" "$reducer" \
  'const auto total = weight / model_size;' 'const auto total = weight;'
mutate "the sum over shared axes left out" core/distributed/placed_parameters.cpp \
  'return kind == Kind::kShared || (axis == AxisKind::kDataLike && kind == Kind::kReplicated);' \
  'return axis == AxisKind::kDataLike && kind == Kind::kReplicated;'
mutate "the sum done twice" strategies/gradient_bucket.cpp \
  '    work_.wait();' '    work_.wait(); all_reduce(flat_, ReduceOp::kSum, group());'
mutate "the norm counted on every rank" core/distributed/placed_norm.cpp \
  'if (!has_own_parts())' 'if (lists.empty())' \
  'if (!own_sets_[i].empty()) {' '{' \
  'mesh_->group(own_sets_[i])' 'mesh_->world()->all()'
mutate "weights of micro-batches left out" "$reducer" \
  'const auto total = weight / model_size;' 'const auto total = weight > 0 ? data_size : 0.0 * model_size;'
mutate "what a rank did not use is not zero" "$reducer" \
  'view_of(parameter).zero_();' 'parameter.used = false;'
mutate "reduced gradients are summed again" "$reducer" \
  'gradient.mul_(part);' '(void)part;'
mutate "an uneven last batch counts as a whole one" core/data/epoch_order.cpp \
  'return static_cast<double>(range_of(batch_idx).size * share_.count) /' 'return 1.0 + 0.0 *'
mutate "an inf of one rank is that rank's alone" strategies/ddp.cpp \
  'if (parameters_.has_own_parts()) all_reduce(found' 'if (false) all_reduce(found'
mutate "weights along a model axis are not compared" "$reducer" \
  'if (votes.are_equal(votes.weight_of_first(), mean)) return;' 'if (mean > 0) return;'

if ((missed)); then die "$missed mutations were not seen"; fi
echo "all mutations were seen"
