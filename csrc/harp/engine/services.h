// Hands what an engine hears unasked to the service it is for, and a peer's end to all of them.
// An event of a service that has not begun here yet, or has ended, is dropped.
// Engine only.
#pragma once

#include <array>

#include "harp/service.h"
#include "harp/transport.h"

namespace taco::harp {

class Services final : public Observer {
 public:
  // Null: the service is no longer here.
  void set(Service service, Observer* observer) { at(service) = observer; }

  void on_unmatched_st(PeerId peer, const MessageKey& key, std::uint64_t signature,
                       bool is_send) override {
    if (Observer* const observer = at(service_of_group(key.group)))
      observer->on_unmatched_st(peer, key, signature, is_send);
  }
  void on_mismatch_st(PeerId peer, const MessageKey& key, std::uint64_t ours,
                      std::uint64_t theirs) override {
    if (Observer* const observer = at(service_of_group(key.group)))
      observer->on_mismatch_st(peer, key, ours, theirs);
  }
  void on_notice_st(PeerId peer, std::span<const std::byte> bytes) override {
    if (Observer* const observer = at(service_of_notice(bytes)))
      observer->on_notice_st(peer, bytes);
  }
  void on_peer_lost_st(PeerId peer, const Status& why) override {
    for (Observer* const observer : observers_)
      if (observer != nullptr) observer->on_peer_lost_st(peer, why);
  }
  void on_peer_left_st(PeerId peer) override {
    for (Observer* const observer : observers_)
      if (observer != nullptr) observer->on_peer_left_st(peer);
  }

 private:
  Observer*& at(Service service) { return observers_[static_cast<std::size_t>(service)]; }

  std::array<Observer*, kServices> observers_{};
};

}  // namespace taco::harp
