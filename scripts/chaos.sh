#!/usr/bin/env bash
# scripts/chaos.sh [--minutes 10] [--nodes 3] [--epochs n]
# Trains the digits on one rank on each of several nodes under fulmen-run, while every few seconds a
# random rank or agent gets SIGKILL or SIGSTOP, or a link is cut, until the time is over; and then to
# the end. The weights must be those of an undisturbed run on one host, bit for bit. Prints how many
# faults were survived; exit code 1 if the weights differ. Nodes are network namespaces of this host,
# for which it needs to be root and to have ip (Debian package iproute2).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

minutes=10
nodes=3
epochs=
while (($#)); do
  case "$1" in
    --minutes) minutes="$2"; shift ;;
    --nodes) nodes="$2"; shift ;;
    --epochs) epochs="$2"; shift ;;
    *) die "unknown argument $1; known are --minutes, --nodes and --epochs" ;;
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
net="chaos-$$"
export OMP_NUM_THREADS=1
FULMEN_TOKEN="$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')"
export FULMEN_TOKEN

clean_up() {
  pkill -KILL -f "$work" || true
  for ((node = 0; node < nodes; ++node)); do ip netns del "$net-$node" 2> /dev/null || true; done
  ip netns del "$net-switch" 2> /dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

# Each node has a link eth0 to a switch, which is a bridge in a namespace of its own.
make_network() {
  ip netns add "$net-switch" && ip -n "$net-switch" link add switch type bridge &&
    ip -n "$net-switch" link set switch up || die "network namespaces cannot be made: be root"
  for ((node = 0; node < nodes; ++node)); do
    ip netns add "$net-$node"
    ip link add eth0 netns "$net-$node" type veth peer name "port$node" netns "$net-switch"
    ip -n "$net-switch" link set "port$node" master switch up
    ip -n "$net-$node" address add "10.78.0.$((node + 1))/24" dev eth0
    ip -n "$net-$node" link set lo up
    ip -n "$net-$node" link set eth0 up
  done
}

# digits_to <folder>: the program and its arguments, in `digits`.
digits_to() {
  digits=("$bin/examples/digits" --devices 0 --batch-size $((nodes * 11)) --epochs "$epochs"
    --data "$repo/data/digits.csv.gz" --output "$1" --restartable)
}

say "undisturbed: $nodes ranks on one host, $epochs epochs"
digits_to "$work/calm"
"$bin/tools/run/fulmen-run" --nproc-per-node "$nodes" "${digits[@]}" > "$work/calm.log" 2>&1 ||
  { tail -20 "$work/calm.log"; die "it failed"; }

make_network
digits_to "$work/storm"
agents=()
starts=0
start_agent() {
  ip netns exec "$net-$1" "$bin/tools/run/fulmen-run" --nnodes "$nodes" --node-rank "$1" \
    --rdzv-endpoint 10.78.0.1:29400 --max-restarts 1000 --shutdown-timeout 2 \
    --rdzv-conf last_call_timeout=1,keep_alive_interval=0.5,keep_alive_max_attempt=4 \
    "${digits[@]}" >> "$work/node$1.log" 2>&1 &
  agents[$1]=$!
  starts=$((starts + 1))
}

# stands_still <pid>: for some seconds, and then goes on.
stands_still() {
  kill -STOP "$1" 2> /dev/null || return
  (sleep 3; kill -CONT "$1" 2> /dev/null || true) &
}
cut_link() {
  ip -n "$net-$1" link set eth0 down
  (sleep 3; ip -n "$net-$1" link set eth0 up 2> /dev/null || true) &
}

declare -A faults=(["ranks killed"]=0 ["ranks stopped"]=0 ["agents killed"]=0 ["agents stopped"]=0
  ["links cut"]=0)
count() { faults["$1"]=$((faults["$1"] + 1)); }
disturb() {
  local node=$((RANDOM % nodes)) rank
  rank="$(pgrep -P "${agents[$node]}" -f "^$bin/examples/digits " | head -1)" || true
  case $((RANDOM % 8)) in
    0) kill -KILL "${agents[$node]}" && count "agents killed" ;;
    1) stands_still "${agents[$node]}" && count "agents stopped" ;;
    2 | 3) cut_link "$node" && count "links cut" ;;
    4) [[ -n "$rank" ]] && stands_still "$rank" && count "ranks stopped" ;;
    *) [[ -n "$rank" ]] && kill -KILL "$rank" && count "ranks killed" ;;
  esac || true
}

# Starts agents again that were killed, as whoever watches a cluster does; true when all have ended.
all_ended() {
  local node code
  for node in "${!agents[@]}"; do
    kill -0 "${agents[$node]}" 2> /dev/null && continue
    code=0
    wait "${agents[$node]}" || code=$?
    if ((code == 137)); then
      start_agent "$node"
    elif ((code != 0)); then
      tail -20 "$work/node$node.log"
      die "the agent of node $node ended with exit code $code"
    else
      unset "agents[$node]"
    fi
  done
  ((${#agents[@]} == 0))
}

say "disturbed for $minutes minutes: $nodes nodes with one rank each"
for ((node = 0; node < nodes; ++node)); do start_agent "$node"; done
end=$((SECONDS + minutes * 60))
early=
while ! all_ended; do
  sleep "$((RANDOM % 4 + 1)).$((RANDOM % 10))"
  if ((SECONDS < end && ${#agents[@]} == nodes)); then disturb; fi
  if ((SECONDS < end)); then early="$SECONDS"; fi
done
if ((early + 10 < end)); then say "it ended before the time: give more --epochs"; fi

total=0 list=
for kind in "${!faults[@]}"; do
  total=$((total + faults["$kind"]))
  list+="${list:+, }${faults["$kind"]} $kind"
done
say "faults survived: $total ($list); agents were started $starts times"
# last_of <folder>: its last checkpoint.
last_of() { echo "$1/checkpoints/$(cat "$1/checkpoints/last")"; }
for part in model.safetensors optimizer.safetensors; do
  cmp "$(last_of "$work/calm")/$part" "$(last_of "$work/storm")/$part" ||
    die "$part is not that of the undisturbed run"
done
echo "the last checkpoint is that of the undisturbed run, bit for bit"
