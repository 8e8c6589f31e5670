#!/usr/bin/env bash
# sanitize.sh asan|tsan|threads|fuzz: the C++ core, which knows no torch, under a sanitizer or
# libFuzzer. "threads" is the short form of tsan that `make test` runs: the tests labelled so.
source "$(dirname "$0")/common.sh"
readonly KIND=${1:?asan, tsan, threads or fuzz}
ulimit -c 0
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

# configure_and_build PRESET [TARGET]
configure_and_build() {
  cmake --preset "$1" && cmake --build "build/$1" -j "$JOBS" --target "${2:-all}"
}

fuzz() {
  local target name corpus seconds=${FUZZ_SECONDS:-60} found=0
  for target in $(find build/fuzz -type f -executable -name '*_fuzz'); do
    name=$(basename "$target")
    corpus=build/corpus/$name
    mkdir -p "$corpus"
    echo "== $name for $seconds s (findings under build/corpus)"
    "$target" -max_total_time="$seconds" -timeout=10 -artifact_prefix="$corpus-" \
      -print_final_stats=1 "$corpus" 2>&1 | tail -n 12
    found=$((found + 1))
  done
  [ "$found" -gt 0 ] || die "no fuzz target was built"
}

case $KIND in
  asan | tsan)
    grouped tools/setup.sh core
    phase "compile with $KIND" configure_and_build "$KIND"
    TACO_SIM_SEEDS=${TACO_SIM_SEEDS:-300} grouped tools/run_ctest.sh "build/$KIND"
    ;;
  threads)
    phase "compile with tsan" configure_and_build tsan thread_tests
    grouped tools/run_ctest.sh build/tsan -L threads
    ;;
  fuzz)
    grouped tools/setup.sh fuzz
    phase "compile the fuzz targets" configure_and_build fuzz
    grouped fuzz
    ;;
  *) die "sanitize.sh: unknown kind '$KIND'" ;;
esac
