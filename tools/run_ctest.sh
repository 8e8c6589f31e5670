#!/usr/bin/env bash
# run_ctest.sh TREE [CTEST ARGUMENTS]: the C++ tests of a build tree. On a terminal with ctest's own
# progress; in a log one line in fifty, and whatever fails in full.
source "$(dirname "$0")/common.sh"
readonly TREE=${1:?the build tree}
shift
run() { ctest --test-dir "$TREE" -j "$JOBS" --output-on-failure "$@"; }
if [ -t 1 ]; then
  run --progress "$@"
else
  run "$@" | awk '/^ *Start +[0-9]+: / { next }
    / Passed +[0-9.]+ sec *$/ { if (++passed % 50) next }
    { print; fflush() }'
fi
