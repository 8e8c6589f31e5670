#include "remote/torch/endpoint_address.h"

#include <cstring>

#include "edge/comparison.h"

namespace taco::remote {
namespace {

constexpr std::string_view kAnyEndpoint = "taco-endpoint-", kEndpoint = "taco-endpoint-1:";

}  // namespace

std::string EndpointAddress::encode() const {
  std::string bytes(kEndpoint);
  bytes.append(reinterpret_cast<const char*>(&endpoint), sizeof endpoint);
  return bytes + process.encode();
}

Result<EndpointAddress> EndpointAddress::decode(std::string_view bytes) {
  if (!bytes.starts_with(kAnyEndpoint)) {
    return invalid("these " + std::to_string(bytes.size()) +
                   " bytes are no address of an endpoint of HARP's: give what bind() of the peer "
                   "returned");
  }
  if (!bytes.starts_with(kEndpoint)) {
    return Status(Code::kVersionMismatch,
                  "the peer's address is of another version of taco_torch: it begins with " +
                      std::string(bytes.substr(0, bytes.find(':')).substr(0, 40)) +
                      ", and here they begin with " +
                      std::string(kEndpoint.substr(0, kEndpoint.size() - 1)));
  }
  bytes.remove_prefix(kEndpoint.size());
  EndpointAddress address;
  if (bytes.size() < sizeof address.endpoint) return invalid("the peer's address is cut off");
  std::memcpy(&address.endpoint, bytes.data(), sizeof address.endpoint);
  bytes.remove_prefix(sizeof address.endpoint);
  Result<edge::Hello> process = edge::Hello::decode(bytes);
  if (!process.ok()) return invalid("the peer's address is damaged or cut off");
  address.process = std::move(process).value();
  return address;
}

Status check_alike(const EndpointAddress& ours, const EndpointAddress& theirs) {
  return edge::compare("this endpoint", ours.process, "the peer's", theirs.process,
                       "Both need the same.");
}

}  // namespace taco::remote
