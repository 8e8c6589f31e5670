#!/usr/bin/env bash
# commands.sh HARP_PERF HARP_STAT HARP_SETUP: starts them as people do, and looks
# for what they are to say.
set -euo pipefail
readonly PERF=$1 STAT=$2 SETUP=$3
readonly SHORT=(--sizes 64 --seconds 0.02 --rounds 20)
export TACO_LOG=warning

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# expect FILE TEXT: the file holds the text.
expect() {
  grep -qF -- "$2" "$1" && return
  printf 'no "%s" in %s:\n%s\n' "$2" "$1" "$(cat "$1")"
  exit 1
}

# refused FILE COMMAND...: the command fails, and the file holds what it says of it.
refused() {
  local said=$1
  shift
  "$@" >"$said" 2>&1 || return 0
  printf 'nothing refused: %s\n' "$*"
  exit 1
}

# absent FILE: nobody has made it.
absent() {
  [ ! -e "$1" ] && return
  printf '%s was written:\n%s\n' "$1" "$(cat "$1")"
  exit 1
}

"$PERF" "${SHORT[@]}" --tcp >here
expect here "latency"
expect here "(TCP polls)"
"$PERF" "${SHORT[@]}" --transport udp --paths 2 --security encrypt --json >json
expect json '"TACO_TRANSPORT": "udp", "TACO_PATHS": "2", "TACO_HARP_SECURITY": "encrypt"}'

"$PERF" --server --listen 127.0.0.1 --port 0 --once >server &
until port=$(sed -nE 's/.* a server at port ([0-9]+).*/\1/p' server) && [ -n "$port" ]; do
  sleep 0.02
done
"$PERF" --client 127.0.0.1 --port "$port" "${SHORT[@]}" >client
wait $!
expect client "bandwidth"
expect server "measured from 127.0.0.1"
refused refused "$PERF" --client 127.0.0.1 --port "$port"
expect refused "no harp-perf --server answers at 127.0.0.1, port $port"

for rank in 0 1; do
  "$PERF" --transport udp --files meet --rank "$rank" --rounds 100 --seconds 5 >"rank$rank" &
  pids[rank]=$!
done
until "$STAT" --interval 0 "${pids[0]}" >stat 2>/dev/null && grep -q "(pid ${pids[1]} " stat; do
  kill -0 "${pids[0]}"
done
expect stat "process ${pids[0]}, engine 0: driver udp"
expect stat "(pid ${pids[1]} "
"$STAT" --json "${pids[@]}" >stat_json
expect stat_json '"paths": [{"peer": '
"$STAT" --prometheus >stat_prometheus
expect stat_prometheus 'harp_path_live{pid="'
wait "${pids[@]}"
expect rank0 "half round trip median"
expect rank1 "received 8388608 B"
refused gone "$STAT" "${pids[0]}"
expect gone "there is no process ${pids[0]}"
refused wrong "$STAT" x
expect wrong '"x" is no process'
refused wrong "$STAT" --watch --interval 1e-9
expect wrong '--interval is shorter than 0.01 s'

# Ranks leave no file behind after a failure either.
mkdir ranks
refused wrong env TMPDIR="$folder/ranks" TACO_HARP_DRIVER=pigeon "$PERF" --ranks 3
expect wrong 'there is no such driver'
rmdir ranks
TMPDIR=/proc refused wrong "$PERF" --ranks 3
expect wrong 'can be made in /proc: '

# A host may lack what only its people can mend: then it says so, and writes nothing down.
if "$SETUP" --check >setup_check 2>setup_wants; then
  "$SETUP" --conf "$folder/harp.conf" --set paths=2 --set driver=udp >setup
  expect setup "Set up HARP successfully"
  "$SETUP" --conf "$folder/harp.conf" --set paths=3 >setup
  [ "$(grep -v '^#' harp.conf)" = $'version = 1\ndriver = udp\npaths = 3' ]
  TACO_HARP_CONF=$folder/harp.conf "$PERF" "${SHORT[@]}" --transport udp >conf
  TACO_HARP_CONF=$folder/harp.conf "$SETUP" --unset paths --unset port >setup
  [ "$(grep -v '^#' harp.conf)" = $'version = 1\ndriver = udp' ]
  # For all users of the host, whoever writes it down and by what umask.
  (umask 077 && "$SETUP" --conf "$folder/made/harp.conf" --set paths=2 >setup)
  [ "$(stat -c %a made made/harp.conf)" = $'755\n644' ]
else
  expect setup_check "mend it: "
  expect setup_wants "wanting"
fi
printf 'version = 1\npats = 3\n' >wrong.conf
refused wrong env TACO_HARP_CONF=$folder/wrong.conf "$PERF" "${SHORT[@]}"
expect wrong 'wrong.conf, line 2: the key "pats" is not known; did you mean paths?'
refused wrong "$SETUP" --set paths=9
expect wrong '--set paths=9: paths is "9", but must be auto or an integer from 1 to 8'
refused wrong "$SETUP" --unset pats
expect wrong '--unset pats: the key "pats" is not known; did you mean paths?'
refused wrong "$SETUP" --set weather=fine
expect wrong 'the key "weather" is not known; there are version, driver, interfaces,'
refused wrong "$SETUP" --set version=2
expect wrong "harp-setup's to write"
refused wrong env TACO_HARP_CONF=none "$SETUP" --set paths=2
expect wrong 'TACO_HARP_CONF=none'
printf 'version = 1\ninterfaces = eth77\n' >interfaces.conf
refused wrong env TACO_HARP_CONF=$folder/interfaces.conf "$SETUP" --check
expect wrong '"eth77" does not exist'
expect wrong "(interfaces, line 2 of $folder/interfaces.conf)"
printf 'version = 1\ndriver = pigeon\n' >driver.conf
refused wrong env TACO_HARP_CONF=$folder/driver.conf "$PERF" "${SHORT[@]}"
expect wrong "TACO_HARP_DRIVER=\"pigeon\" (driver, line 2 of $folder/driver.conf): there is no"
refused wrong "$SETUP" --set pats=3
expect wrong 'the key "pats" is not known; did you mean paths?'
refused wrong "$SETUP" --set paths
expect wrong 'must be KEY=VALUE'
refused wrong "$SETUP" --chek
expect wrong '--chek is unknown; did you mean --check?'
refused wrong "$SETUP" --conf wrong.conf
expect wrong 'wrong.conf, line 2: the key "pats" is not known; did you mean paths?'
printf 'version = 9\npaths = 3\n' >later.conf
refused wrong "$SETUP" --conf later.conf
expect wrong 'later.conf, line 1: it is of version "9"'
expect later.conf 'version = 9'
refused wrong "$SETUP" --check --set driver=pigeon
expect wrong 'there is no such driver'
readonly TWO_ENGINES=("$SETUP" --check --set engines=2 --set driver=dpdk)
refused wrong env TACO_HARP_DPDK="net_ring0 10.9.0.1/24" "${TWO_ENGINES[@]}"
expect wrong 'engines=2 with driver=dpdk'
expect wrong 'the device net_ring0 belongs to one engine'
TACO_HARP_DPDK="net_memif0 10.9.0.1/24" "${TWO_ENGINES[@]}" >looked 2>&1 || true
expect looked 'dpdk     ' # the check of that name, behind which there is no refusal
refused wrong "$SETUP" --check --set cores=0,1023
expect wrong 'names core 1023, which this host does not have'
"$SETUP" --check --conf none.conf >looked 2>&1 || true
absent none.conf

# A user without rights is told what to do, and changes nothing. A user namespace that knows root
# alone has no such user.
readonly NOBODY=(setpriv --reuid 65534 --regid 65534 --clear-groups)
cp "$SETUP" setup_of_anybody
chmod 755 . setup_of_anybody
if ! "${NOBODY[@]}" ./setup_of_anybody --help >said 2>&1; then
  echo "not asked as a user without rights: $(cat said)"
  exit 0
fi
refused said "${NOBODY[@]}" ./setup_of_anybody --conf anybody.conf
grep -q "wanting; the lines above" said ||
  expect said "anybody.conf cannot be written: Permission denied"
absent anybody.conf
refused said "${NOBODY[@]}" ./setup_of_anybody --check --set driver=xdp
expect said 'this user lacks CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF'
