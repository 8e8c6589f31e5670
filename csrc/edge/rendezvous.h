// How the ranks of a group, of whichever service, find each other: through the c10d store, once,
// when the group is made. Groups that are made at the same time do so under prefixes of their own.
//
// The store may be torchrun's, which outlives a group and sees the same prefix again, so keys of
// dead incarnations may lie around. Nothing old can be believed, because everything that counts is
// named by a random value of this very rendezvous:
//   hello/<r>          rank r: fresh token, version, settings, address of its Stack
//   w/<token>          rank 0: "I have read your hello", the rendezvous's nonce
//   a/<nonce>/<r>      rank r: the nonce has arrived
//   go/<nonce>         rank 0: the table of all ranks, or why there will be no group
//   done/<nonce>       how many have read that
// A stale hello is answered by nobody; rank 0 re-reads the hellos of silent ranks until the fresh
// one has replaced it. Each rank deletes its own keys afterwards, the last reader the table; for
// this rank 0 waits, since the store may end with its process. A rank makes eight round trips to
// the store, however many ranks there are, and rank 0 seven; and some more for looks that come too
// early (edge/store_door.h).
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/clock.h"
#include "edge/rendezvous_record.h"
#include "edge/stack_use.h"
#include "harp/service.h"

namespace taco::edge {

struct RendezvousOptions {
  std::string group;  // what the program calls it
  int rank = 0;
  int world = 1;
  Duration timeout = 0;           // 0: half an hour
  std::vector<Setting> settings;  // must be alike on all ranks
  std::string word;               // what all ranks are to know; rank 0's counts
  harp::Service service = harp::Service::kCollectives;  // whose group it is
  StackUse::Engines engines = StackUse::Engines::kOwn;
};

// The ranks on another engine than the group's own.
struct EnginePeers {
  std::shared_ptr<harp::Stack> stack;
  std::vector<harp::PeerId> peers;  // by rank; the own one is unused
};

// All vectors are by rank, or by host as host_of_rank numbers them.
struct RendezvousResult {
  harp::Member member;            // the group, and which rank of how many this is
  std::shared_ptr<StackUse> use;  // null when nothing is sent: a group of one that nobody joins
  std::shared_ptr<harp::Stack> stack;  // its own
  std::uint64_t group_id = 0;          // random, and of the service
  std::string word;                    // rank 0's
  std::vector<harp::PeerId> peers;     // the own one is unused
  std::vector<EnginePeers> further;    // of StackUse::further(), in that order
  std::vector<int> host_of_rank;       // the same on all ranks
  std::vector<double> host_gbits;      // interface speed by host
};

// Blocks, without the GIL, until every rank has arrived or the time is up. Errors: kRendezvous,
// naming the store, the missing ranks and what to check; kVersionMismatch, where versions or
// settings differ, on every rank, naming two that differ and what each has.
Result<RendezvousResult> rendezvous(const c10::intrusive_ptr<c10d::Store>& store,
                                    const RendezvousOptions& options);

// Gives back what rendezvous() took of the Stack. Idempotent.
void release(RendezvousResult& result);

// The addresses of this moment: interfaces come and go.
void bring_addresses(const StackUse& use, Hello& hello);
// The parts of a rendezvous, however its records travel: this rank's, with a fresh token; and the
// group that a table of all ranks makes, with their processes as peers, for options.rank.
Result<Hello> hello_of(const StackUse& use, const std::vector<Setting>& settings);
Status enter_table(const Table& table, const RendezvousOptions& options, RendezvousResult* result);

}  // namespace taco::edge
