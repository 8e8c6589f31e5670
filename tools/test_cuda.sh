#!/usr/bin/env bash
# test_cuda.sh: tries taco in programs that compute on a GPU, and NCCL over its plugin; builds the
# kernels for GPUs, compares them with the host's on the first GPU, takes their times, and runs
# small sizes under compute-sanitizer where it is installed. Says why, and succeeds, where there is
# no nvcc or no GPU.
# CUDA_ARCHITECTURES="75-real 120": builds for these; SANITIZER_SECONDS=60: the longest that each of
# its four tools may take; PYTHON=python3: one that has taco_torch and a torch for GPUs, if .venv
# has not.
source "$(dirname "$0")/common.sh"
verdict=0

skip() {
  printf 'skipped: %s\n' "$*"
  exit $verdict
}

beside_a_gpu() {
  local python=${PYTHON:-$VENV/bin/python}
  if "$python" -c 'import sys, taco_torch, torch; sys.exit(not torch.cuda.is_available())' \
    2>/dev/null; then
    "$python" -m pytest -p no:cacheprovider --no-header tests/cuda
  else
    printf 'skipped: taco beside a GPU: %s has no taco_torch, or no torch that finds one\n' \
      "$python"
  fi
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

beside_a_gpu || verdict=1
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

said=$LOGS/device_check.log
timeout 300 $BUILD/device_check | tee "$said" || verdict=1
if grep -q '^skipped' "$said"; then exit $verdict; fi
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
