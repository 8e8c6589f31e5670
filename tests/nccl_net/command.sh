#!/usr/bin/env bash
# command.sh HARP_NCCL_CHECK PLUGIN BROKEN: starts the command as people do, and looks for what it
# is to say.
set -euo pipefail
readonly CHECK=$1 PLUGIN=$2 BROKEN=$3

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# expect STATUS TEXT COMMAND...: the command ends with that status and says the text.
expect() {
  local status=0 wanted=$1 text=$2
  shift 2
  "$@" >said 2>&1 || status=$?
  [ "$status" = "$wanted" ] && grep -qF -- "$text" said && return
  printf 'status %s, and no "%s" from %s:\n%s\n' "$status" "$text" "$*" "$(cat said)"
  exit 1
}

expect 0 "usage: harp-nccl-check" "$CHECK" --help
expect 0 "farewell" "$CHECK" --list
expect 0 "ok     v10 table" "$CHECK" --check table "$PLUGIN"
expect 0 "ok     v12 table" "$CHECK" --check table "$PLUGIN"
expect 1 "FAILED v11 table" "$CHECK" --check table "$BROKEN"
expect 2 'no table ncclNetPlugin_v12' "$CHECK" --table 12 "$BROKEN"
expect 2 "./nothing.so cannot be loaded" "$CHECK" nothing.so
expect 2 '--check "tabel"' "$CHECK" --check tabel "$PLUGIN"
expect 2 "name a plugin" "$CHECK"
expect 2 "--tabel is unknown" "$CHECK" --tabel "$PLUGIN"
