#!/usr/bin/env bash
# sanitize.sh asan|tsan|threads|fuzz|fuzz-short|trees: the C++ core, which knows no torch, under a
# sanitizer or libFuzzer. "threads" and "fuzz-short" are what `make test-all` runs of them: tests
# labelled threads or assertions, and the same inputs for every fuzz target each time; "trees"
# compiles what these two need.
source "$(dirname "$0")/common.sh"
readonly KIND=${1:?asan, tsan, threads, fuzz, fuzz-short or trees}
ulimit -c 0
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

# configure_and_build PRESET [TARGET]
configure_and_build() {
  cmake --preset "$1" && cmake --build "build/$1" -j "$JOBS" --target "${2:-all}"
}

# A short run, in inputs. One of these takes simulated processes to their end.
short_runs() { case $1 in session_fuzz | handshake_fuzz) echo 2000 ;; *) echo 200000 ;; esac }

# The inputs that a target begins with: those that make_corpus makes, and those that once found
# something.
first_inputs() {
  local folder
  for folder in "build/fuzz/corpus/$1" "tests/fuzz/corpus/$1"; do
    if [ -d "$folder" ]; then echo "$folder"; fi
  done
}

# fuzz_one TARGET NEW ARGUMENTS...: one target, and one line about it, or more where it fails.
fuzz_one() {
  local target=$1 new=$2 name log done_line folders
  shift 2
  name=$(basename "$target")
  log=$LOGS/$name.log
  mkdir -p "$new/$name"
  mapfile -t folders < <(first_inputs "$name")
  set -- "${@//\{runs\}/$(short_runs "$name")}" "$new/$name" "${folders[@]}"
  if ! "$target" -timeout=10 -artifact_prefix="build/corpus/$name-" "$@" >"$log" 2>&1; then
    printf '%-34sFAILED (inputs: build/corpus); the end of %s:\n\n' "$name ..." "${log#"$PWD"/}"
    tail -n 40 "$log"
    return 1
  fi
  done_line=$(grep -E '^Done [0-9]+ runs' "$log") || done_line='it did not run to its end'
  printf '%-34s%s\n' "$name ..." "$done_line"
  [[ $done_line == Done* ]]
}

# fuzz NEW ARGUMENTS...: every target with these arguments of libFuzzer's, {runs} standing for its
# short run, as many at a time as there are cores. Inputs that reach something new come to
# NEW/<target>. One that fails does not keep the others from running, but all of it fails.
fuzz() {
  local new=$1 target failed=() targets pids=()
  shift
  mkdir -p build/corpus
  mapfile -t targets < <(find build/fuzz -type f -executable -name '*_fuzz' | LC_ALL=C sort)
  [ ${#targets[@]} -gt 0 ] || die "no fuzz target was built"
  for target in "${targets[@]}"; do
    while [ "$(jobs -pr | wc -l)" -ge "$JOBS" ]; do sleep 0.1; done
    fuzz_one "$target" "$new" "$@" &
    pids+=($!)
  done
  for target in "${targets[@]}"; do
    wait "${pids[0]}" || failed+=("$(basename "$target")")
    pids=("${pids[@]:1}")
  done
  [ ${#failed[@]} -eq 0 ] || die "fuzzing found something in: ${failed[*]}"
}

case $KIND in
  asan | tsan)
    grouped tools/setup.sh core
    phase "compile with $KIND" configure_and_build "$KIND"
    TACO_SIM_SEEDS=${TACO_SIM_SEEDS:-300} grouped tools/run_ctest.sh "build/$KIND"
    ;;
  threads)
    phase "compile with tsan" configure_and_build tsan thread_tests
    grouped tools/run_ctest.sh build/tsan -L 'threads|assertions'
    ;;
  fuzz)
    grouped tools/setup.sh fuzz
    phase "compile the fuzz targets" configure_and_build fuzz fuzz_targets
    grouped fuzz build/corpus -max_total_time="${FUZZ_SECONDS:-60}" -print_final_stats=1
    ;;
  fuzz-short)
    phase "compile the fuzz targets" configure_and_build fuzz fuzz_targets
    # Long inputs from the start, and the seed given: the same inputs on every machine.
    rm -rf build/fuzz/new
    grouped fuzz build/fuzz/new -runs={runs} -seed=1 -len_control=0 -max_len=2048
    ;;
  trees)
    phase "compile with tsan" configure_and_build tsan thread_tests
    phase "compile the fuzz targets" configure_and_build fuzz fuzz_targets
    ;;
  *) die "sanitize.sh: unknown kind '$KIND'" ;;
esac
