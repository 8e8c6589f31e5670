// The one place that knows which drivers there are.
//
// Any thread.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "harp/network.h"

namespace taco::harp {

// By the name that TACO_HARP_DRIVER gives; "auto" is the kernel's UDP. kInvalidArgument: there is
// no driver of that name, and the text lists those that there are; or what the environment says of
// its devices is wrong.
Result<std::shared_ptr<const Network>> network_named(std::string_view driver);

}  // namespace taco::harp
