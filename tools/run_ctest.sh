#!/usr/bin/env bash
# run_ctest.sh TREE [CTEST ARGUMENTS]: the C++ tests of a build tree. On a terminal with ctest's own
# progress; in a log one line in fifty, and whatever fails in full. What ran, and how long, is in
# build/logs/results-<TREE>.xml.
source "$(dirname "$0")/common.sh"
readonly TREE=${1:?the build tree}
shift
readonly RESULTS=$LOGS/results-$(basename "$TREE").xml
run() { ctest --test-dir "$TREE" -j "$JOBS" --output-on-failure --output-junit "$RESULTS" "$@"; }
if [ -t 1 ]; then
  run --progress "$@"
else
  run "$@" | awk '/^ *Start +[0-9]+: / { next }
    / Passed +[0-9.]+ sec *$/ { if (++passed % 50) next }
    { print; fflush() }'
fi
