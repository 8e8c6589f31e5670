#!/usr/bin/env bash
# newest_torch.sh [PYTEST ARGUMENTS]: the Python tests over the newest torch that pip offers, known
# to us or not: a release that breaks something is noticed within a week of it.
set -euo pipefail
cd "$(dirname "$0")/.."
offered=$(python3 -m pip index versions torch 2>/dev/null | sed -nE '1s/^torch \(([0-9.]+).*/\1/p')
[ -n "$offered" ] || { echo "pip names no version of torch: is its index reachable?" >&2; exit 1; }
echo "the newest torch is $offered"
TORCH=$offered exec tools/test_torch.sh "$@"
