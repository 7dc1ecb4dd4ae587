#!/usr/bin/env bash
# Builds the example digits, trains it on two ranks of this host, and passes further arguments on to it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$repo/scripts/setup.sh"
build release example_digits
exec "$repo/build/release/examples/digits" --data "$repo/data/digits.csv.gz" --devices 2 "$@" < /dev/null
