#!/bin/sh
# run_if_loadable.sh <program>: exit code 77 (skipped) if a library that it needs is not there.
missing="$(ldd "$1" | sed -n 's/^\s*\(\S*\) => not found$/\1/p' | sort -u | tr '\n' ' ')"
if [ -n "$missing" ]; then
  echo "skipped: not found are $missing(the whole torch wheel with its dependencies has them)"
  exit 77
fi
exec "$1"
