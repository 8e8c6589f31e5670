#!/usr/bin/env bash
# sanitize.sh asan|tsan|threads|fuzz|fuzz-short: the C++ core, which knows no torch, under a
# sanitizer or libFuzzer. "threads" and "fuzz-short" are what `make test` runs of them: the tests
# labelled threads or assertions, and the same inputs for every fuzz target each time.
source "$(dirname "$0")/common.sh"
readonly KIND=${1:?asan, tsan, threads, fuzz or fuzz-short}
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

# fuzz NEW ARGUMENTS...: every target with these arguments of libFuzzer's, {runs} standing for its
# short run. Inputs that reach something new come to NEW/<target>. One that fails does not keep the
# others from running, but all of it fails.
fuzz() {
  local new=$1 target name log found=0 failed=() arguments folders
  shift
  mkdir -p build/corpus
  for target in $(find build/fuzz -type f -executable -name '*_fuzz' | LC_ALL=C sort); do
    name=$(basename "$target")
    log=$LOGS/$name.log
    mkdir -p "$new/$name"
    printf '%-34s' "$name ..."
    mapfile -t folders < <(first_inputs "$name")
    arguments=("${@//\{runs\}/$(short_runs "$name")}" "$new/$name" "${folders[@]}")
    if "$target" -timeout=10 -artifact_prefix="build/corpus/$name-" "${arguments[@]}" >"$log" 2>&1
    then
      grep -E '^Done [0-9]+ runs' "$log" || { failed+=("$name"); echo "it did not run to its end"; }
    else
      failed+=("$name")
      printf 'FAILED (inputs: build/corpus); the end of %s:\n\n' "${log#"$PWD"/}"
      tail -n 40 "$log"
    fi
    found=$((found + 1))
  done
  [ "$found" -gt 0 ] || die "no fuzz target was built"
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
  *) die "sanitize.sh: unknown kind '$KIND'" ;;
esac
