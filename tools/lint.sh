#!/usr/bin/env bash
# lint.sh: format, static analysis, types, layers. clang-tidy, which is slow, looks at the C++ files
# that differ from LINT_BASE (default: the previous commit, plus what is uncommitted; "all" for
# every file).
source "$(dirname "$0")/common.sh"
grouped tools/setup.sh lint
export PATH="$VENV/bin:$PATH"
LINT_BASE=${LINT_BASE:-HEAD~1}

cpp_files() {
  git ls-files 'csrc/*.h' 'csrc/*.cc' 'csrc/*.cu' 'tests/*.h' 'tests/*.cc' 'tests/*.cu' \
    'benchmarks/*.cc'
}

changed_sources() {
  if [ "$LINT_BASE" = all ] || ! git rev-parse -q --verify "$LINT_BASE" >/dev/null; then
    git ls-files 'csrc/*.cc'
  else
    git diff --name-only --diff-filter=d "$LINT_BASE" -- 'csrc/*.cc'
  fi
}

check_format() { cpp_files | xargs -r clang-format --dry-run -Werror; }

check_shell() { bash -n tools/*.sh .ci/run; }

run_clang_tidy() {
  local database=build/tidy files
  files=$(changed_sources | grep -v '/kernels/.*\(avx\|neon\|_arm\|_none\)' || true)
  [ -z "$files" ] && { echo "no C++ source differs from $LINT_BASE"; return; }
  cmake -S . -B "$database" -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DTACO_TESTS=OFF \
    -DTACO_UNITY_BATCH=0 -DPython_EXECUTABLE="$VENV/bin/python"
  echo "$files" | xargs -r -n 1 -P "$JOBS" \
    clang-tidy --quiet -p "$database" --warnings-as-errors='*'
}

# Which sources are neighbours changes with every new one: the names of all of a library differ.
compile_as_one() {
  local database=build/names
  cmake -S . -B "$database" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 \
    -DTACO_TESTS=OFF -DTACO_UNITY_BATCH=1000 -DPython_EXECUTABLE="$VENV/bin/python"
  cmake --build "$database" -j "$JOBS"
}

phase "clang-format" check_format
phase "shell syntax" check_shell
phase "ruff check" ruff check .
phase "ruff format" ruff format --check .
phase "mypy --strict" mypy --strict src/taco_torch src/_taco_torch_autoload.py \
  src/_taco_torch_commands.py src/_taco_torch_horovod.py
phase "layers, lengths, pages" pytest -q tests/test_tidy.py tests/test_pages.py
phase "names within a library" compile_as_one
phase "clang-tidy (since $LINT_BASE)" run_clang_tidy
