// How DDP's Reducer shares parameters out among buckets. It begins with an arrangement of its own
// and makes another once, after the first backward pass, by the order in which gradients came. A
// training that goes on from a checkpoint bit for bit needs the second one at once.
//
// On the thread that runs the model, between two steps.
#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

namespace taco::pg {

// Each bucket's parameters, which lie in it one after the other, by their numbers in the Reducer's
// order.
using BucketArrangement = std::vector<std::vector<std::int64_t>>;

BucketArrangement arrangement_of(const c10d::Reducer& reducer);

// Arranges them so, for good. False, and nothing has changed, where the Reducer's arrangement is
// final already, or these are not all of its parameters, each once.
bool arrange(c10d::Reducer& reducer, const BucketArrangement& arrangement);

}  // namespace taco::pg
