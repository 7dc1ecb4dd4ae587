#!/usr/bin/env bash
# Installs what the build needs; asks for nothing and costs under a second when all is there.
#   packages  from Debian or Ubuntu, when missing and when root or sudo allows
#   .venv     LibTorch out of the torch wheel (its CPU side), and safetensors for the tests that read
#             our files from Python. FULMEN_TORCH_DIR names another LibTorch and saves the download.
#   data/     the digits of the quick start, 56 kB
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

torch_version=2.15.0
digits_sha256=09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22

# --- Packages -------------------------------------------------------------------------------------

# A Python that can make virtual environments, and has wheels of torch.
find_python() {
  local candidate
  for candidate in "${FULMEN_PYTHON:-}" python3 /usr/bin/python3; do
    if [[ -n "$candidate" ]] && "$candidate" -c '
import ensurepip, sys, venv
sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2> /dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

missing_tools() {
  local pair
  for pair in cmake:cmake ninja:ninja-build g++:g++ git:git; do
    command -v "${pair%%:*}" > /dev/null || echo "${pair##*:}"
  done
  [[ -e "$venv/bin/python" ]] || find_python > /dev/null || echo python3-venv
}

installed() {
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" == installed ]]
}

missing_packages() {
  missing_tools
  command -v ccache > /dev/null || echo ccache
  local package other
  for package in libboost1.81-dev libboost-json1.81-dev libprotozero-dev libcli11-dev \
      libgtest-dev libgmock-dev libbenchmark-dev libssl-dev zlib1g-dev openmpi-bin iproute2; do
    other="${package/1.81/}"
    if installed "$package" || installed "$other"; then continue; fi
    # Systems that have another Boost name it without its version.
    apt-cache show "$package" > /dev/null 2>&1 || package="$other"
    echo "$package"
  done
}

install_packages() {
  local missing root=()
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    command -v sudo > /dev/null || die "install these packages first: ${missing[*]}"
    root=(sudo -n --preserve-env=DEBIAN_FRONTEND)
  fi
  say "installing ${missing[*]}"
  ${root[@]+"${root[@]}"} apt-get update -qq < /dev/null
  # Names may differ once the lists are fresh.
  mapfile -t missing < <(missing_packages)
  ${root[@]+"${root[@]}"} apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    < /dev/null > /dev/null
}

if command -v apt-get > /dev/null && command -v dpkg-query > /dev/null; then
  install_packages
else
  say "not a Debian system: needed are CMake 3.25, Ninja, g++ 12 or clang 14, Python 3 with venv,"
  say "Boost 1.81 with Boost.JSON, OpenSSL 3, protozero, CLI11, GoogleTest and Google Benchmark (ccache helps)"
  mapfile -t missing < <(missing_tools)
  ((${#missing[@]} == 0)) || die "not found: ${missing[*]}"
fi

# --- Python: LibTorch, safetensors, digits ----------------------------------------------------------

# once <mark> <command...>: runs a command unless it succeeded before in this .venv.
once() {
  local mark="$venv/.done-$1"
  shift
  if [[ -e "$mark" ]]; then return; fi
  "$@" < /dev/null
  touch "$mark"
}

pip() { "$venv/bin/python" -m pip "$@"; }

make_venv() {
  local python
  python="$(find_python)" || die "no Python 3.10 to 3.14 with the module venv was found"
  say "making $venv"
  "$python" -m venv --clear "$venv"
}

install_torch() {
  say "installing LibTorch $torch_version (1.3 GB)"
  pip install -q --no-deps "torch==$torch_version" nvidia-cuda-runtime nvidia-cuda-cupti
}

# For fulmen::cuda: the header of the NCCL that LibTorch was built with, without its library.
install_nccl_header() {
  local wheel folder site
  wheel="$("$venv/bin/python" -c '
import importlib.metadata, re
for text in importlib.metadata.requires("torch") or []:
    found = re.match(r"(nvidia-nccl-cu\d+==[\d.]+)", text)
    if found:
        print(found[1])')"
  if [[ -z "$wheel" ]]; then return; fi
  say "fetching the header of $wheel"
  folder="$(mktemp -d)"
  pip download -q --no-deps --only-binary :all: -d "$folder" "$wheel"
  site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  (cd "$site" && "$venv/bin/python" -c '
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(members=[n for n in wheel.namelist() if "/include/" in n])' "$folder"/*.whl)
  rm -rf "$folder"
}

install_safetensors() {
  say "installing safetensors for Python"
  pip install -q --no-deps safetensors numpy
}

fetch_digits() {
  say "fetching the digits"
  mkdir -p "$repo/data"
  local folder
  folder="$(mktemp -d)"
  pip download -q --no-deps --only-binary :all: -d "$folder" scikit-learn < /dev/null
  "$venv/bin/python" - "$folder" "$repo/data" << 'PYTHON'
import glob, hashlib, os, sys, zipfile
wheel, = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel) as archive:
    digits = archive.read("sklearn/datasets/data/digits.csv.gz")
part = sys.argv[2] + "/digits.csv.gz.part"
with open(part, "wb") as file:
    file.write(digits)
os.replace(part, sys.argv[2] + "/digits.csv.gz")
PYTHON
  rm -rf "$folder"
  sha256sum --status -c <<< "$digits_sha256  $repo/data/digits.csv.gz" ||
    say "note: data/digits.csv.gz is not the file that the expected numbers were made with"
}

# One at a time, where two scripts start together.
exec 9> "$repo/.venv.lock"
flock 9
# if, not ||: a function on the left of || goes on after an error.
if [[ ! -e "$venv/.done-venv" ]]; then make_venv; fi
once venv true
if [[ -z "${FULMEN_TORCH_DIR:-}" ]]; then once "torch-$torch_version" install_torch; fi
if [[ -z "${FULMEN_TORCH_DIR:-}" ]]; then once "nccl-header-$torch_version" install_nccl_header; fi
once safetensors install_safetensors
if [[ ! -s "$repo/data/digits.csv.gz" ]]; then fetch_digits; fi
