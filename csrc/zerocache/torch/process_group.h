// A group of processes of torch.distributed, of whatever backend, as the ranks of a store.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "zerocache/ranks/collectives.h"

namespace taco::zerocache {

// Bytes are sent from and received into the caller's memory itself: no copies are made here. A
// failure is the group's: kPeerLost, kTimeout, or kResource with the backend's words. Needs no GIL,
// and should not have it where it waits.
std::unique_ptr<Collectives> collectives_of(c10::intrusive_ptr<c10d::Backend> backend);

// Whether this thread waits for such a group: what it runs then is a handler of a signal.
bool waits_here();

}  // namespace taco::zerocache
