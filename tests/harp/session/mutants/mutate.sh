#!/bin/sh
# mutate.sh SCRIPT SOURCE BATCHES COMPILED: writes COMPILED, which is SOURCE as SCRIPT (for sed)
# changes it, with the neighbours that one of the BATCHES of a unity build gives it, if any does.
set -e
script=$1 source=$2 batches=$3 compiled=$4
mutated=${compiled%.cc}_alone.cc
sed -f "$script" "$source" >"$mutated"
if cmp -s "$source" "$mutated"; then
  echo "$script changes nothing in $source (any more)"
  exit 1
fi
if batch=$(grep -lsF "\"$source\"" "$batches"/*.cxx); then
  sed "s|\"$source\"|\"$mutated\"|" "$batch" >"$compiled"
else
  cp "$mutated" "$compiled"
fi
