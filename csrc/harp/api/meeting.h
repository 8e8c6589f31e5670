// Two processes that tell each other something by files.
//
// Any thread.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace harp {

// Puts `said` into the file `own`, whole or not at all, for this user alone, and waits for what the
// other process puts into `theirs`. kRendezvous: the file cannot be written, or the other one did
// not come in time.
taco::Result<std::string> exchange_by_files(const std::string& own, const std::string& theirs,
                                            const std::string& said, taco::Duration timeout);

}  // namespace harp
