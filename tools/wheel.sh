#!/usr/bin/env bash
# wheel.sh: a wheel for one Python (PYTHON=python3.12), with an extension for each torch of TORCHES:
# minor versions, of which pip downloads the latest release, or folders of torch packages. By
# default it is each minor version that taco_torch is written for and pip finds. DEBUG=1 writes
# the debug information beside the wheel.
source "$(dirname "$0")/common.sh"
readonly WRITTEN_FOR="2.11 2.12 2.13 2.14 2.15"
readonly DIST=build/dist
# glibc 2.34 and the libstdc++ of GCC 11; auditwheel ends with an error where the wheel needs more.
PLATFORM=manylinux_2_34_$(uname -m)
readonly PLATFORM TORCHES=${TORCHES:-}
grouped tools/setup.sh wheel
export PATH="$WHEEL_VENV/bin:$PATH"
TAG=$(python -c 'import sys; print(sys.implementation.cache_tag)')
readonly TAG
# As deep as build/release, so that the compiler's cache knows the core's objects again.
readonly TREE=build/wheel-$TAG

# unpack_torch MINOR FOLDER: of a torch, what an extension is compiled and linked against.
unpack_torch() {
  local download=$2.download
  rm -rf "$download"
  python -m pip download -q --no-deps --only-binary :all: -d "$download" "torch==$1.*" &&
    python - "$download" <<'UNPACK' && rm "$download"/*.whl && mv "$download" "$2"
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
(wheel,) = folder.glob("torch-*.whl")
names = "torch/include/", "torch/version.py", *(
    f"torch/lib/lib{library}.so" for library in ("c10", "torch_cpu", "torch_python")
)
with zipfile.ZipFile(wheel) as file:
    file.extractall(folder, [name for name in file.namelist() if name.startswith(names)])
UNPACK
}

find_torches() {
  local torch folder left_out=
  for torch in ${TORCHES:-$WRITTEN_FOR}; do
    folder=build/torch/$TAG-$torch
    if [ -d "$torch" ]; then
      torches+=("$(realpath "$torch")")
      continue
    fi
    if [ ! -d "$folder" ]; then
      (phase "torch $torch, to compile against" unpack_torch "$torch" "$folder") ||
        { [ $? -ne 130 ] && [ -z "$TORCHES" ] && left_out+=" $torch" && continue; } || exit 1
    fi
    torches+=("$PWD/$folder/torch")
  done
  [ ${#torches[@]} -gt 0 ] || die "pip found no torch to compile against"
  [ -z "$left_out" ] || printf 'left out, as pip cannot download it: torch%s\n' "$left_out"
}

compile() {
  rm -rf "$TREE/dist"
  python -m pip wheel --no-build-isolation --no-deps -v -w "$TREE/dist" -Cbuild-dir="$TREE" \
    -Ccmake.define.TACO_TORCHES="$(IFS=';' && echo "${torches[*]}")" \
    -Ccmake.define.TACO_DEBUG_FILES="${DEBUG:-OFF}" .
}

# torch's libraries are those of the torch that it is installed beside, DPDK's those of the system.
repair() {
  auditwheel repair --plat "$PLATFORM" --only-plat --exclude 'libtorch*.so' --exclude libc10.so \
    --exclude 'librte_*' -w "$DIST" "$TREE"/dist/*.whl
}

torches=()
find_torches
phase "compile for ${#torches[@]} torch versions" compile
phase "repair for $PLATFORM" repair
name=$(basename "$TREE"/dist/*.whl)
ls -s -h "$DIST/${name%-linux_*}-$PLATFORM.whl"
if [ -n "$DEBUG" ]; then
  (cd "$TREE/csrc" && tar -c -- *.debug) >"$DIST/${name%-linux_*}-debug.tar"
fi
