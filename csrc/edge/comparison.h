// Whether two processes that have told each other who they are can work together.
#pragma once

#include <string>

#include "base/status.h"
#include "edge/rendezvous_record.h"

namespace taco::edge {

// kVersionMismatch: what differs, of their versions and settings; the text calls them by `us` and
// `them`, and says in a sentence what to do.
Status compare(const std::string& us, const Hello& ours, const std::string& them,
               const Hello& theirs, const std::string& advice);

}  // namespace taco::edge
