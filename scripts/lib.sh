# Shared by the scripts beside this file, which source it. Needs bash.
set -euo pipefail

repo="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$repo/.venv"
export DEBIAN_FRONTEND=noninteractive
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Compilers that run at once: one a core, and 1.5 GB of memory for each. FULMEN_JOBS overrides.
jobs() {
  if [[ -n "${FULMEN_JOBS:-}" ]]; then
    echo "$FULMEN_JOBS"
    return
  fi
  local cores memory
  cores="$(nproc)"
  memory="$(awk '/^MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)"
  if ((memory < 1)); then memory=1; fi
  echo $((memory < cores ? memory : cores))
}

# build <preset> [target...]: configures, builds, and prints the wall time.
build() {
  local preset="$1"
  shift
  local targets=() options=()
  if (($#)); then targets=(--target "$@"); fi
  if [[ -n "${FULMEN_TORCH_DIR:-}" ]]; then options=("-DFULMEN_TORCH_DIR=$FULMEN_TORCH_DIR"); fi
  local start=$SECONDS
  (cd "$repo" && cmake --preset "$preset" ${options[@]+"${options[@]}"} > /dev/null)
  (cd "$repo" && cmake --build --preset "$preset" -j "$(jobs)" ${targets[@]+"${targets[@]}"})
  echo "build: $((SECONDS - start)) s"
}
