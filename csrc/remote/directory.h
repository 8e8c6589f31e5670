// The endpoints of one Stack: hands each what others say to it, and all of them a peer's end. One
// per Stack, made by the first endpoint and detached by the last. It outlives the last where the
// engine cannot be told to forget it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "harp/engine/stack.h"
#include "remote/endpoint_core.h"

namespace taco::remote {

// A caller stops to wait for an engine that does not run.
inline constexpr Duration kPatienceForEngine = 5 * kSecond;

class Directory final : public harp::Observer {
 public:
  // Any thread but an engine's, balanced by detach(). The engine hears of it with the first
  // endpoint that is added.
  static std::shared_ptr<Directory> attach(const std::shared_ptr<harp::Stack>& stack);
  static void detach(const std::shared_ptr<Directory>& directory,
                     const std::shared_ptr<harp::Stack>& stack);
  // Instead of detach(), for good: the engine hangs, and may use both once it goes on.
  static void keep(const std::shared_ptr<Directory>& directory,
                   const std::shared_ptr<EndpointCore>& core);

  explicit Directory(harp::Transport& transport) : transport_(transport) {}

  // The engine from here on. `stack`: the one of attach().
  void add_st(EndpointCore& endpoint, harp::Stack& stack);
  void add_st(EndpointCore& endpoint) { endpoints_.emplace(endpoint.id(), &endpoint); }
  // Nothing of it is open: the transport need not keep what comes for it.
  void remove_st(EndpointCore& endpoint);

  // harp::Observer
  void on_unmatched_st(harp::PeerId, const harp::MessageKey&, std::uint64_t, bool) override {}
  void on_mismatch_st(harp::PeerId, const harp::MessageKey&, std::uint64_t,
                      std::uint64_t) override {}
  void on_peer_lost_st(harp::PeerId peer, const Status& why) override;
  void on_peer_left_st(harp::PeerId peer) override;
  void on_notice_st(harp::PeerId peer, std::span<const std::byte> bytes) override;

 private:
  harp::Transport& transport_;
  std::unordered_map<std::uint64_t, EndpointCore*> endpoints_;
  int users_ = 0;  // guarded by the registry's mutex
};

}  // namespace taco::remote
