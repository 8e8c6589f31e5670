// The state of an Endpoint: a use of the process's Stack, the transfers under way, the peers that
// it is connected to and the channels that were given it. Listeners and dialers add to the latter
// two.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "harp/api/channels.h"
#include "harp/api/ends_unless_copied.h"
#include "harp/api/transfer_state.h"
#include "harp/engine/stack.h"
#include "harp/harp.h"
#include "harp/transport.h"

namespace harp {

struct Endpoint::State : EndsUnlessCopied<Endpoint::State> {
  explicit State(std::shared_ptr<taco::harp::Stack> held) : stack(std::move(held)) {}
  ~State() { close(); }

  // The Stack may have other users, who keep it, and its peers, open.
  void close();
  Status usable() const;

  // See Endpoint. Any thread.
  Result<Peer> connect(std::string_view address);
  void disconnect(Peer peer);
  // A connection of a listener's or a dialer's, to whose peer this Endpoint is connected: its
  // channel ends with it.
  void keep(const Connection& connection);
  void disconnect(const Connection& connection);
  Status end_channel(Peer peer, std::uint32_t channel) const;
  bool flush(Duration timeout);
  // For a connection with `peer` at a listener of this process: no other listener of either side's
  // gives it.
  std::uint32_t give_channel(Peer peer) const;

  // Null: it may go on; else a transfer that has failed.
  std::unique_ptr<Transfer::State> refuse(std::size_t bytes) const;
  // kInvalidArgument: the channel has ended.
  Result<taco::harp::MessageKey> next_key(Peer peer, std::uint32_t channel, bool sends) const;

  const std::shared_ptr<taco::harp::Stack> stack;
  const std::shared_ptr<OpenTransfers> transfers = std::make_shared<OpenTransfers>();
  std::mutex mutex;
  std::vector<Peer> peers;        // as often as connected; guarded by mutex
  std::vector<Connection> given;  // those that were kept; the same
  std::set<std::uint32_t> met;    // ids of all that were ever among them; the same
  std::atomic<bool> is_open{true};

 private:
  std::string channel_name(Peer peer, std::uint32_t channel) const;
  ChannelOfTwo channel_with(Peer peer, std::uint32_t channel) const;
  std::vector<Connection> take_given_by(Peer peer);
  void end_given(const Connection& connection) const;
  void forget_messages(const ChannelOfTwo& which) const;
  bool is_idle(taco::Time until);
};

}  // namespace harp
