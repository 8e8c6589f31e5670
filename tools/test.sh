#!/usr/bin/env bash
# test.sh [PYTEST ARGUMENTS]: every test in one run: ctest, the threads under ThreadSanitizer, the
# fuzz targets, pytest (PYTEST_JOBS=2: in two processes). Whatever happens, also ^C, nothing stays
# behind; and what should have ended by itself but did not fails the run.
source "$(dirname "$0")/common.sh"
grouped tools/setup.sh tests
export PATH="$VENV/bin:$PATH:/usr/sbin:/sbin"

# Processes of this run are known by this variable in their environment; namespaces have no
# names and end with their processes.
TEST_RUN_ID="t$$x$(date +%s | tail -c 5)"
TMPDIR=$(mktemp -d)
export TEST_RUN_ID TMPDIR
SEEDS=${TACO_SIM_SEEDS:-10000}
export PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES=""
ulimit -c 0

# Pids that carry this run's mark; this script's environment is older than the mark.
leftovers() {
  local file
  for file in $(env -u TEST_RUN_ID grep -lszx "TEST_RUN_ID=$TEST_RUN_ID" /proc/[0-9]*/environ); do
    echo "${file//[!0-9]/}"
  done
}

sweep() {
  local pid
  for pid in $(leftovers); do kill -KILL "$pid" 2>/dev/null || true; done
  rm -rf "$TMPDIR"
}

interrupted() {
  trap '' INT TERM
  if [ -n "${stage_pid:-}" ] && kill -TERM -- "-$stage_pid" 2>/dev/null; then
    wait "$stage_pid" 2>/dev/null || true
  fi
  sweep
  printf '\ninterrupted; everything this run started has been stopped\n'
  exit 130
}
trap interrupted INT TERM HUP
trap sweep EXIT

# stage COMMAND...: in a session of its own, so that one signal reaches all of it.
stage() {
  setsid "$@" &
  stage_pid=$!
  local rc=0
  wait "$stage_pid" || rc=$?
  stage_pid=
  return "$rc"
}

verdict=0
printf '\n== C++ tests (%s simulator seeds)\n' "$SEEDS"
stage env TACO_SIM_SEEDS="$SEEDS" tools/run_ctest.sh build/release || verdict=1
printf '\n== C++ tests of threads under ThreadSanitizer (make tsan runs all)\n'
stage tools/sanitize.sh threads || verdict=1
printf '\n== What reads bytes from outside, by libFuzzer (make fuzz goes on for longer)\n'
stage tools/sanitize.sh fuzz-short || verdict=1
printf '\n== Python tests\n'
# With several processes (PYTEST_JOBS=2), no core idles while a death is sensed or a slow network
# carries; but a race in one of torch's own tests shows then.
stage "$VENV/bin/pytest" tests -n "${PYTEST_JOBS:-0}" --dist worksteal "$@" || verdict=1

# Processes that end when the tests end may need a moment to notice.
for _ in {1..30}; do
  remaining=$(leftovers)
  [ -z "$remaining" ] && break
  sleep 0.1
done
if [ -n "$remaining" ]; then
  printf '\nFAILED: processes of this run are still alive:\n'
  # shellcheck disable=SC2086
  ps -o pid,ppid,etimes,args -p $(echo $remaining) || true
  verdict=1
fi
[ $verdict -eq 0 ] && printf '\nall tests passed in %d s\n' "$SECONDS" || printf '\nTESTS FAILED\n'
exit $verdict
