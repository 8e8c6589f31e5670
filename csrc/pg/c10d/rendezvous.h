// How the ranks of a group find each other: through the c10d store, once, when the group is made.
//
// The store may be torchrun's, which outlives a group and sees the same prefix again, so keys of
// dead incarnations may lie around. Nothing old can be believed, because everything that counts is
// named by a random value of this very meeting:
//   hello/<r>          rank r: fresh token, version, settings, address of its Stack
//   w/<token>          rank 0: "I have read your hello", the meeting's nonce
//   a/<nonce>/<r>      rank r: the nonce has arrived
//   go/<nonce>         rank 0: the table of all ranks, or why there will be no group
//   done/<nonce>       how many have read that
// A stale hello is answered by nobody; rank 0 re-reads the hellos of silent ranks until the fresh
// one has replaced it. Each rank deletes its own keys afterwards, the last reader the table; for
// this rank 0 waits, since the store may end with its process. A rank makes eight round trips to
// the store, however many ranks there are, and rank 0 seven; and some more for looks that come too
// early (pg/c10d/rendezvous_door.h).
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "pg/communicator.h"

namespace taco::pg {

struct MeetingOptions {
  int rank = 0;
  int world = 1;
  std::string name;               // torch's name of the group
  std::vector<int> global_ranks;  // empty: this is WORLD
  Duration timeout = 0;
  std::string algorithm;  // Options.algorithm: compared with the others'; "": TACO_ALGORITHM
  CostParameters costs;   // what the planner would assume here; all ranks take rank 0's
};

// What a meeting leaves: the Stack (null when world == 1) and what a Communicator needs.
struct Meeting {
  std::shared_ptr<harp::Stack> stack;
  GroupOptions group;
};

// Blocks, without the GIL, until every rank has arrived or the time is up. Errors: kRendezvous,
// naming the store, the missing ranks and what to check; kVersionMismatch, where versions or
// settings differ, on every rank, naming two that differ and what each has.
Result<Meeting> meet(const c10::intrusive_ptr<c10d::Store>& store, const MeetingOptions& options);

// Gives back what meet() took of the Stack.
void part(Meeting& meeting);

}  // namespace taco::pg
