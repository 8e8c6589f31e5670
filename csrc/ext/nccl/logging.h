// The plugin speaks through NCCL's logger: NCCL_DEBUG and NCCL_DEBUG_FILE hold for what it says,
// and the last warning is a part of what the framework raises. HARP's own lines go the same way.
//
// Any thread.
#pragma once

#include <string>

#include "base/status.h"
#include "ext/nccl/abi.h"

namespace harp::nccl {

// From now on lines go there; NCCL's stays valid longer than the plugin. Null: nowhere.
void log_by(abi::Logger logger);

void log_info(const std::string& text);
void log_warning(const std::string& text);

// NCCL's code for a failure, which is logged together with the call that failed.
abi::Result fail(const char* call, const taco::Status& why);

}  // namespace harp::nccl
