#!/usr/bin/env bash
# consumer.sh BUILD CMAKE COMPILER PROGRAM.cc: installs the library into an empty folder, builds the
# program against it by pkg-config and by find_package, runs both with each other, and starts the
# installed commands.
set -euo pipefail
readonly BUILD=$1 CMAKE=$2 COMPILER=$3 PROGRAM=$4

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$CMAKE" --install "$BUILD" --component harp --prefix "$folder/prefix" >/dev/null
cp "$PROGRAM" "$folder/echo.cc"
cd "$folder"

config=$(dirname "$(find prefix -name harp.pc)")
readonly config
libraries=$(dirname "$config")
export LD_LIBRARY_PATH=$folder/$libraries

read -ra flags <<<"$(PKG_CONFIG_PATH=$config pkg-config --cflags --libs harp)"
"$COMPILER" -std=c++20 -Wall -Wextra -Werror echo.cc "${flags[@]}" -o echo-by-pkg-config

cat >CMakeLists.txt <<'LISTS'
cmake_minimum_required(VERSION 3.22)
project(consumer LANGUAGES CXX)
find_package(harp 0.2 REQUIRED)
add_executable(echo-by-package echo.cc)
target_link_libraries(echo-by-package PRIVATE harp::harp)
LISTS
"$CMAKE" -S . -B build -DCMAKE_PREFIX_PATH="$folder/prefix" \
  -DCMAKE_CXX_COMPILER="$COMPILER" >/dev/null
"$CMAKE" --build build >/dev/null

for transport in shm udp; do
  mkdir "$transport"
  TACO_TRANSPORT=$transport timeout 60 ./echo-by-pkg-config server "$transport" &
  TACO_TRANSPORT=$transport timeout 60 ./build/echo-by-package client "$transport" 200
  wait $!
done

"prefix/bin/harp-perf" --measure latency --sizes 8 --rounds 50 --tcp
"prefix/bin/harp-stat" --help >/dev/null
exported=$(nm -D --defined-only "$libraries"/libharp.so | awk '$2 ~ /[TBD]/ { print $3 }' |
  c++filt | grep -vE '^(harp::|_init|_fini|_edata|_end|__bss_start)' || true)
if [ -n "$exported" ]; then
  printf 'the library shows more than harp.h:\n%s\n' "$exported"
  exit 1
fi
