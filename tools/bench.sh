#!/usr/bin/env bash
# bench.sh [ARGUMENTS OF run_all.py]: every benchmark; figures and plots under out/. With arguments,
# which choose among those of run_all.py, nothing is compiled and the C++ benchmarks are left out.
source "$(dirname "$0")/common.sh"
grouped tools/setup.sh install
readonly TREE=build/release

build_cpp_benchmarks() {
  cmake -S . -B "$TREE" -DTACO_BENCH=ON &&
    cmake --build "$TREE" -j "$JOBS" --target kernels_bench compress_bench shm_bench \
      zerocache_io bulk_bench small_bench nccl_net_bench sessions_bench harp-perf
}

cpp_benchmarks() {
  echo "== kernels: arithmetic beside the memory's own speed"
  "$TREE/benchmarks/cpp/kernels_bench" --megabytes 256 --repeat 3 --json | tee out/kernels.json
  echo "== compress: selection and 16-bit conversions beside the memory's own speed"
  "$TREE/benchmarks/cpp/compress_bench" --json | tee out/compress.json
  echo "== shm: rings and large messages of two processes"
  "$TREE/benchmarks/cpp/shm_bench"
  echo "== sessions: ten thousand idle sessions of one engine"
  TACO_LOG=error "$TREE/benchmarks/cpp/sessions_bench" --json | tee out/sessions.json
  echo "== zerocache_io: pages to and from the disk beside a bare loop of the same requests"
  "$TREE/benchmarks/cpp/zerocache_io" --directory out --json | tee out/zerocache_io.json
  "$VENV/bin/python" benchmarks/run_all.py --note kernels,compress,sessions,zerocache_io
}

mkdir -p out
[ $# -gt 0 ] || phase "compile the C++ benchmarks" build_cpp_benchmarks
grouped "$VENV/bin/python" benchmarks/run_all.py "$@"
[ $# -gt 0 ] || grouped cpp_benchmarks
