// Hears from the kernel that addresses or interfaces of this host have come, gone or changed, in
// the middle of a job: a cable is pulled, a lease ends, somebody types `ip address del`.
//
// Owner thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/status.h"
#include "harp/nic.h"

namespace taco::harp {

class AddressWatch {
 public:
  static Result<std::unique_ptr<AddressWatch>> open();
  ~AddressWatch();
  AddressWatch(const AddressWatch&) = delete;
  AddressWatch& operator=(const AddressWatch&) = delete;

  // Readable when there may be a change.
  int fd() const { return fd_; }
  // There has been one, of whatever kind, since the last call.
  bool take_change();

 private:
  explicit AddressWatch(int fd) : fd_(fd) {}
  const int fd_;
};

// Those of `addresses` (bit i: the i-th) that no interface which is up and has a carrier holds now.
// None: the kernel does not tell.
std::optional<std::uint32_t> missing_of(std::span<const NicAddress> addresses);

}  // namespace taco::harp
