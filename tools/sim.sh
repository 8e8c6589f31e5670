#!/usr/bin/env bash
# sim.sh: the protocol campaign (tests/support/sim_campaign.h) over SEEDS seeds from FIRST_SEED on,
# on all cores: every fault that a network and its hosts know, and what must hold all the same.
# Prints how often each fault fired, and for a seed that fails the line that runs it alone, with a
# trace of its packets for Wireshark (tools/harp.lua).
source "$(dirname "$0")/common.sh"
readonly SEEDS=${SEEDS:-100000} FIRST_SEED=${FIRST_SEED:-1}

compile() {
  cmake --preset sim && cmake --build build/sim -j "$JOBS" --target protocol_campaign
}

grouped tools/setup.sh core
phase "compile the simulator" compile
grouped build/sim/tests/harp/session/protocol_campaign \
  --seeds "$SEEDS" --first "$FIRST_SEED" --threads "$JOBS"
