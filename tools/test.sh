#!/usr/bin/env bash
# test.sh quick|rest|all [PYTEST ARGUMENTS]: tests in one run, C++ and Python. "quick" is what a
# change is tried with; "rest" is what that leaves out: tests marked or labelled "whole",
# ThreadSanitizer, the fuzz targets; "all" is both at once.
# PYTEST_JOBS=N: in so many processes; by default as many as there are cores, and for "quick",
# beside which nothing compiles, one more, since tests also wait. SLOWEST=N: lists the N slowest.
# Whatever happens, also ^C, nothing stays behind; and what should have ended by itself but did not
# fails the run.
source "$(dirname "$0")/common.sh"
readonly PART=${1:?quick, rest or all}
shift
case $PART in
  quick) ctest_part=(-LE whole) shared="not whole" more=1 ;;
  rest) ctest_part=(-L whole) shared="whole and not alone" more=0 ;;
  all) ctest_part=() shared="not alone" more=0 ;;
  *) die "test.sh: unknown part '$PART' (quick, rest or all)" ;;
esac
readonly SEEDS=${TACO_SIM_SEEDS:-10000} JOBS_OF_PYTEST=${PYTEST_JOBS:-$((JOBS + more))}
grouped tools/setup.sh tests
export PATH="$VENV/bin:$PATH:/usr/sbin:/sbin"

# Processes of this run are known by this variable in their environment; namespaces have no
# names and end with their processes.
TEST_RUN_ID="t$$x$(date +%s | tail -c 5)"
TMPDIR=$(mktemp -d)
export TEST_RUN_ID TMPDIR
export PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES=""
# Threads of torch that share a core spin until the other comes: a step of a small model takes four
# times as long with two of them as with one. A test that is about them sets their number.
export OMP_NUM_THREADS=1
ulimit -c 0
rm -f "$LOGS"/results-*.xml

# Pids that carry this run's mark; this script's environment is older than the mark. A process that
# is just replacing its program has no environment to be known by, so that there is none is believed
# at the third look.
leftovers() {
  local file files
  for _ in 1 2 3; do
    files=$(env -u TEST_RUN_ID grep -lszx "TEST_RUN_ID=$TEST_RUN_ID" /proc/[0-9]*/environ) || true
    for file in $files; do echo "${file//[!0-9]/}"; done
    [ -z "$files" ] || return 0
    sleep 0.1
  done
}

sweep() {
  local pid
  for pid in $(leftovers); do kill -KILL "$pid" 2>/dev/null || true; done
  rm -rf "$TMPDIR"
}

stages=() # those that run, by pid

interrupted() {
  trap '' INT TERM
  local pid
  for pid in "${stages[@]}"; do kill -TERM -- "-$pid" 2>/dev/null || true; done
  for pid in "${stages[@]}"; do wait "$pid" 2>/dev/null || true; done
  sweep
  printf '\ninterrupted; everything this run started has been stopped\n'
  exit 130
}
trap interrupted INT TERM HUP
trap sweep EXIT

# begin COMMAND...: in a session of its own, so that one signal reaches all of it.
begin() {
  setsid "$@" &
  stages+=($!)
}

# finish: waits for the stage that began last.
finish() {
  local rc=0
  wait "${stages[-1]}" || rc=$?
  unset 'stages[-1]'
  return "$rc"
}

stage() {
  begin "$@"
  finish
}

# python_tests EXPRESSION PROCESSES PYTEST ARGUMENTS...: those whose markers fit; that none does is
# no failure, since arguments may choose among all tests.
python_tests() {
  local expression=$1 processes=$2 rc=0
  shift 2
  stage "$VENV/bin/pytest" tests -m "$expression" -n "$processes" --dist worksteal \
    --junitxml "$LOGS/results-pytest-${expression// /-}.xml" "$@" || rc=$?
  [ $rc -eq 0 ] || [ $rc -eq 5 ]
}

verdict=0
printf '\n== C++ tests (%s simulator seeds)\n' "$SEEDS"
stage env TACO_SIM_SEEDS="$SEEDS" tools/run_ctest.sh build/release "${ctest_part[@]}" || verdict=1
if [ "$PART" != quick ]; then
  # While Python tests wait until a death is sensed or a slow network has carried.
  begin nice tools/sanitize.sh trees >"$LOGS/sanitizers.log" 2>&1
fi
printf '\n== Python tests\n'
python_tests "$shared" "$JOBS_OF_PYTEST" "$@" || verdict=1
if [ "$PART" != quick ]; then
  printf '\n== C++ tests of threads under ThreadSanitizer (make tsan runs all)\n'
  finish || cat "$LOGS/sanitizers.log"
  stage tools/sanitize.sh threads || verdict=1
  printf '\n== What reads bytes from outside, by libFuzzer (make fuzz goes on for longer)\n'
  stage tools/sanitize.sh fuzz-short || verdict=1
  printf '\n== Python tests that need the machine for themselves\n'
  python_tests alone 0 "$@" || verdict=1
fi

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
printf '\n'
totals=$(python3 tools/test_totals.py --slowest "${SLOWEST:-0}" "$LOGS"/results-*.xml)
if [ $verdict -eq 0 ]; then
  printf '%s; all passed in %d s\n' "$totals" "$SECONDS"
else
  printf '%s; FAILED after %d s\n' "$totals" "$SECONDS"
fi
exit $verdict
