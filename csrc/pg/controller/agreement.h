// Whether the requests that ranks have submitted under one name can run together, and how they
// differ where they cannot. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "pg/controller/request.h"

namespace taco::pg::controller {

// A request as some ranks submitted it.
struct Variant {
  Request request;
  std::vector<int> ranks;  // in ascending order
};

// kMismatch: they cannot run together. Its text says what differs and shows all sides with their
// ranks: "rank 0: float32 [2, 3]; rank 2: float32 [2, 4]".
Status agreement_of(const std::vector<Variant>& variants);

// The rows of a response (request.h), for the kinds that have them, once all `world` ranks agree.
std::vector<std::vector<std::int64_t>> rows_of(const std::vector<Variant>& variants, int world);

// kInvalidArgument: what a rank would get of these rows is more than any memory holds. Its text
// shows the rows that the ranks have.
Status check_rows(const Request& request, const std::vector<std::vector<std::int64_t>>& rows);

// Zeros can stand for a rank that has joined: in sums and averages.
bool zeros_can_stand(const Request& request);
// The failure of one for which they cannot; `joined` are those who will not submit it.
Status failure_by_join(const Request& request, const std::vector<int>& joined);

// The ranks that `members` holds, in ascending order.
std::vector<int> ranks_in(const std::vector<bool>& members);
// "rank 3", "ranks 0-2, 5".
std::string ranks_text(const std::vector<int>& ranks);
// "rank 3", "ranks 0, 1, 2": each by itself.
std::string named_ranks(const std::vector<int>& ranks);
// "[2, 3]".
std::string shape_text(const Shape& shape);

}  // namespace taco::pg::controller
