#!/usr/bin/env bash
# test_cuda.sh: builds the kernels for GPUs, compares them with the host's on the first GPU, takes
# their times, and runs small sizes under compute-sanitizer where it is installed. Says why, and
# succeeds, where there is no nvcc or no GPU. CUDA_ARCHITECTURES="75-real 120": builds for these;
# SANITIZER_SECONDS=60: the longest that each of its four tools may take.
source "$(dirname "$0")/common.sh"

skip() {
  printf 'skipped: %s\n' "$*"
  exit 0
}

find_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc \
    /usr/local/cuda-*/bin/nvcc; do
    if [ -x "$candidate" ]; then
      echo "$candidate"
      return
    fi
  done
}

NVCC=$(find_nvcc || true)
[ -n "$NVCC" ] || skip "nvcc was found neither in PATH nor below /usr/local/cuda*"
CUDA_BIN=$(dirname "$(readlink -f "$NVCC")")
BUILD=build/cuda
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 ||
  true)
[ -n "${CUDA_ARCHITECTURES:-}" ] || CUDA_ARCHITECTURES=${capability/./}
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
phase "configure the kernels for GPUs" cmake -S tests/cuda -B $BUILD "${generator[@]}" \
  "-DCMAKE_CUDA_COMPILER=$NVCC" \
  ${CUDA_ARCHITECTURES:+"-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES// /;}"}
phase "build the kernels for GPUs" cmake --build $BUILD -j "$JOBS"

verdict=0
said=$LOGS/device_check.log
timeout 300 $BUILD/device_check | tee "$said" || verdict=1
if grep -q '^skipped' "$said"; then exit 0; fi
sanitizer=$(command -v "$CUDA_BIN/compute-sanitizer" compute-sanitizer | head -n 1 || true)
if [ -z "$sanitizer" ]; then
  printf 'compute-sanitizer is not installed: the kernels did not run under it\n'
else
  for tool in memcheck racecheck synccheck initcheck; do
    log=$LOGS/cuda-$tool.log
    if timeout "${SANITIZER_SECONDS:-120}" "$sanitizer" --tool $tool --error-exitcode 9 \
      $BUILD/device_check --small >"$log" 2>&1; then
      printf 'compute-sanitizer %s: %s\n' $tool "$(tail -n 1 "$log")"
    else
      printf 'compute-sanitizer %s FAILED (%d); from %s:\n' $tool $? "$log"
      grep -v -E '^ok ' "$log" | head -n 12
      verdict=1
    fi
  done
fi
exit $verdict
