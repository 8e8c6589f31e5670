// Which host is this? Two processes share a host exactly when they can share its memory, which is
// decided by the running kernel (boot id) and the network namespace (abstract sockets, through
// which segments are passed, end there). Never by names, addresses or rank arithmetic.
#pragma once

#include <string>

namespace taco::harp {

// `override_id`, when not empty, is taken as it is (TACO_HOST_ID): tests make one machine look like
// several, containers with odd namespaces can be told that they share a host.
std::string host_identity(const std::string& override_id);

std::string host_name();  // for messages

}  // namespace taco::harp
