# Shared by the scripts in this folder: where things are, and how a phase reports itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/progress.sh
# TORCH=2.14.1 makes every script use that torch instead of the pinned one, in a virtual environment
# and a build tree of its own.
TORCH=${TORCH:-}
readonly FLAVOUR=${TORCH:+-torch-$TORCH}
readonly VENV="$PWD/.venv$FLAVOUR"
readonly WHEEL_VENV="$PWD/.venv-wheel"
readonly LOGS="$PWD/build/logs$FLAVOUR"
mkdir -p "$LOGS"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
# Two trees that compile the same source share one cached object, wherever the clone lies. What a
# header holds is asked once it has been compiled: a preprocessor that runs first may have seen
# another, and its object would be kept for good. Tests, whose precompiled header differs from tree
# to tree, are compiled in each.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
# nproc takes OMP_NUM_THREADS for the number of cores.
JOBS=${JOBS:-$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)}
# Ninja alone would start two more compilers than there are cores, each with a gigabyte of memory.
export CMAKE_BUILD_PARALLEL_LEVEL=$JOBS
DEBUG=${DEBUG:-}

die() {
  printf '\n%s\n' "$*" >&2
  exit 1
}

# grouped COMMAND...: in a process group of its own; when this script is told to end, all of it is.
grouped() {
  start_group "$@"
  await_group
}

start_group() {
  set -m
  "$@" </dev/null &
  GROUP=$!
  set +m
  trap end_group INT TERM HUP
}

await_group() {
  local rc=0
  wait "$GROUP" || rc=$?
  trap - INT TERM HUP
  return "$rc"
}

end_group() {
  trap '' INT TERM HUP
  kill -TERM -- "-$GROUP" 2>/dev/null || true
  wait "$GROUP" 2>/dev/null || true
  exit 130
}

# phase NAME COMMAND...: one line of progress, or a bar where it compiles; what the command says
# goes to build/logs/NAME.log.
phase() {
  local name=$1 log start=$SECONDS
  shift
  log="$LOGS/${name// /-}.log"
  printf '%-34s' "$name ..."
  start_group "$@" >"$log" 2>&1
  follow "$GROUP" "$name" "$log"
  if await_group; then
    printf '%4d s\n' $((SECONDS - start))
  else
    printf 'FAILED after %d s; from %s:\n\n' $((SECONDS - start)) "${log#"$PWD"/}"
    grep -E -m 5 -A 3 '(^|[: ])(fatal )?(error|Error|E):' "$log" || tail -n 25 "$log"
    exit 1
  fi
}

# stamped NAME FINGERPRINT: true when NAME was last finished with this fingerprint.
stamped() { [ "$(cat "build/stamps/$1" 2>/dev/null)" = "$2" ]; }
stamp() {
  mkdir -p build/stamps
  printf '%s' "$2" >"build/stamps/$1"
}

# fingerprint PATH...: changes when any file below them does.
fingerprint() {
  find "$@" -type f ! -name '*.pyc' -print0 | LC_ALL=C sort -z |
    xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}
