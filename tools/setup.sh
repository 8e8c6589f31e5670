#!/usr/bin/env bash
# setup.sh [python|install|tests|lint|fuzz]: everything a target needs, done once. Each level
# includes the ones it stands on:
#   python   Debian packages, .venv, pinned Python packages
#   install  python + the compiled package installed into .venv
#   tests    install + the C++ tests, in the same build tree
#   lint, fuzz   python + clang's tools
source "$(dirname "$0")/common.sh"
readonly LEVEL=${1:-install}
readonly BUILD=build/release

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

# The Debian packages that stand for what is missing, one a line.
missing_packages() {
  local python=$1 version
  command -v g++ >/dev/null || echo g++
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  command -v ccache >/dev/null || echo ccache
  if command -v g++ >/dev/null; then
    echo '#include <gtest/gtest.h>' | g++ -E -x c++ - >/dev/null 2>&1 || echo libgtest-dev
  else
    echo libgtest-dev
  fi
  version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  [ "$(readlink -f "$(command -v python3)")" = "$(readlink -f "$(command -v "$python")")" ] &&
    version=python3
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$version-venv"
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || echo "$version-dev"
  case $LEVEL in
    tests)
      command -v ip >/dev/null || echo iproute2
      command -v nft >/dev/null || echo nftables
      ;;
    lint)
      command -v clang-format >/dev/null || echo clang-format
      command -v clang-tidy >/dev/null || echo clang-tidy
      ;;
    fuzz)
      command -v clang++ >/dev/null || echo clang
      ;;
  esac
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends "$@"
}

system_packages() {
  local missing
  # /usr/sbin holds ip and nft on Debian, which an ordinary user's PATH leaves out.
  export PATH="$PATH:/usr/sbin:/sbin"
  mapfile -t missing < <(missing_packages "$1")
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    phase "system packages" install_packages "${missing[@]}"
  else
    die "Missing on this machine: ${missing[*]}
Install them with:  sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
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

make_environment() {
  # Debian's pip may be too old for build settings (-C needs 23.1).
  "$1" -m venv "$VENV" && "$VENV/bin/python" -m pip install -q --upgrade "pip>=23.1"
}

install_torch() {
  local index
  mapfile -t index < <(torch_index)
  "$VENV/bin/python" -m pip install -q -c constraints.txt torch "${index[@]}"
}

python_packages() {
  local python=$1 print
  print="$(fingerprint requirements.txt constraints.txt) $("$python" --version) $VENV"
  [ -x "$VENV/bin/python" ] && stamped python "$print" && return
  printf 'logs of every step: build/logs\n'
  phase "virtual environment" make_environment "$python"
  phase "torch (pinned)" install_torch
  phase "python packages" "$VENV/bin/python" -m pip install -q -c constraints.txt \
    -r requirements.txt
  stamp python "$print"
}

compile_and_install() {
  "$VENV/bin/python" -m pip install --no-build-isolation --no-deps --force-reinstall \
    -v -Cbuild-dir="$BUILD" -Cbuild.targets=_C -Ccmake.define.TACO_TESTS=ON .
}

install_package() {
  local print
  print="$(fingerprint csrc taco_torch CMakeLists.txt pyproject.toml tests/CMakeLists.txt)"
  stamped install "$print" && return
  phase "compile and install taco_torch" compile_and_install
  stamp install "$print"
}

python=$(find_python)
system_packages "$python"
python_packages "$python"
case $LEVEL in
  python | lint | fuzz) ;;
  install) install_package ;;
  tests)
    install_package
    phase "compile the C++ tests" cmake --build "$BUILD" -j "$JOBS"
    ;;
  *) die "setup.sh: unknown level '$LEVEL' (python, install, tests, lint or fuzz)" ;;
esac
