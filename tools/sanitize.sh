#!/usr/bin/env bash
# sanitize.sh asan|tsan|fuzz: the C++ core, which knows no torch, under a sanitizer or libFuzzer.
source "$(dirname "$0")/common.sh"
readonly KIND=${1:?asan, tsan or fuzz}
readonly TREE=build/$KIND
ulimit -c 0

configure_and_build() {
  cmake --preset "$KIND" && cmake --build "$TREE" -j "$JOBS"
}

fuzz() {
  local target name corpus seconds=${FUZZ_SECONDS:-60}
  for target in $(find "$TREE" -type f -executable -name '*_fuzz'); do
    name=$(basename "$target")
    corpus=build/corpus/$name
    mkdir -p "$corpus"
    echo "== $name for $seconds s (findings under build/corpus)"
    "$target" -max_total_time="$seconds" -timeout=10 -artifact_prefix="$corpus-" \
      -print_final_stats=1 "$corpus" 2>&1 | tail -n 12
  done
}

case $KIND in
  asan | tsan)
    grouped tools/setup.sh python
    phase "compile with $KIND" configure_and_build
    export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
    TACO_SIM_SEEDS=${TACO_SIM_SEEDS:-300} tools/run_ctest.sh "$TREE"
    ;;
  fuzz)
    grouped tools/setup.sh fuzz
    phase "compile the fuzz targets" configure_and_build
    [ -n "$(find "$TREE" -type f -executable -name '*_fuzz')" ] || die "no fuzz target was built"
    fuzz
    ;;
  *) die "sanitize.sh: unknown kind '$KIND'" ;;
esac
