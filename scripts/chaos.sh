#!/usr/bin/env bash
# scripts/chaos.sh [--minutes 10] [--ranks 3] [--epochs n]
# Trains the digits under fulmen-run while a random rank or agent gets SIGKILL or SIGSTOP every few
# seconds, again and again until the time is over, and then to the end. The weights must be those of
# an undisturbed run, bit for bit. Prints how many faults were survived; exit code 1 if they differ.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

minutes=10
ranks=3
epochs=
while (($#)); do
  case "$1" in
    --minutes) minutes="$2"; shift ;;
    --ranks) ranks="$2"; shift ;;
    --epochs) epochs="$2"; shift ;;
    *) die "unknown argument $1; known are --minutes, --ranks and --epochs" ;;
  esac
  shift
done
# So many that the faults end first: an epoch takes about half a second where nothing disturbs it.
: "${epochs:=$((minutes * 60))}"
bin="$repo/build/release"
for program in "$bin/tools/run/fulmen-run" "$bin/examples/digits"; do
  [[ -x "$program" ]] || die "$program is not there: run scripts/test.sh --build-only first"
done
work="$(mktemp -d)"
trap 'pkill -KILL -f "$work" || true; rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1

# job <folder>: replaces this shell by the agent.
job() {
  exec "$bin/tools/run/fulmen-run" --nproc-per-node "$ranks" --max-restarts 100000 \
    "$bin/examples/digits" --devices "$ranks" --batch-size $((ranks * 11)) --epochs "$epochs" \
    --data "$repo/data/digits.csv.gz" --output "$1" --restartable
}
say "undisturbed: $ranks ranks, $epochs epochs"
(job "$work/calm") > "$work/calm.log" 2>&1 || { tail -20 "$work/calm.log"; die "it failed"; }

# ranks_of <folder>: the processes that train there, without the agent.
ranks_of() { pgrep -f "^$bin/examples/digits .*--output $1( |$)" || true; }
faults_of_ranks=0 faults_of_agents=0 starts=0 agent=
start_agent() {
  (job "$work/storm") >> "$work/storm.log" 2>&1 &
  agent=$!
  starts=$((starts + 1))
}
say "disturbed for $minutes minutes"
start_agent
end=$((SECONDS + minutes * 60))
code=
while [[ -z "$code" ]]; do
  sleep "$((RANDOM % 4 + 1)).$((RANDOM % 10))"
  if ! kill -0 "$agent" 2> /dev/null; then
    code=0
    wait "$agent" || code=$?
    # 137: by us. The agent of a real cluster is started again by whoever watches it.
    if ((code == 137)); then code=; start_agent; fi
    continue
  fi
  ((SECONDS < end)) || continue
  mapfile -t victims < <(ranks_of "$work/storm")
  case $((RANDOM % 8)) in
    0)
      kill -KILL "$agent"
      faults_of_agents=$((faults_of_agents + 1))
      ;;
    *)
      ((${#victims[@]})) || continue
      victim="${victims[RANDOM % ${#victims[@]}]}"
      if ((RANDOM % 4)); then
        kill -KILL "$victim" 2> /dev/null || continue
      else
        # Stands still for some seconds, and goes on, which the others must wait for.
        kill -STOP "$victim" 2> /dev/null || continue
        (sleep 3; kill -CONT "$victim" 2> /dev/null || true) &
      fi
      faults_of_ranks=$((faults_of_ranks + 1))
      ;;
  esac
done
((code == 0)) || { tail -20 "$work/storm.log"; die "the disturbed run ended with exit code $code"; }

say "faults survived: $((faults_of_ranks + faults_of_agents))" \
  "($faults_of_ranks of ranks, $faults_of_agents of agents, which were started $starts times)"
# last_of <folder>: its last checkpoint.
last_of() { echo "$1/checkpoints/$(cat "$1/checkpoints/last")"; }
for part in model.safetensors optimizer.safetensors; do
  cmp "$(last_of "$work/calm")/$part" "$(last_of "$work/storm")/$part" ||
    die "$part is not that of the undisturbed run"
done
echo "the last checkpoint is that of the undisturbed run, bit for bit"
