// One endpoint as the engine has it: what it asks of its one peer, and what it grants it. A peer
// may connect, and ask for memory, before this side has connected to it: what it says waits until
// then. So does what others say, who may take the places of a few, but not of all: whom there is no
// place for is told so.
//
// Engine only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "remote/memory_owner.h"
#include "remote/requester.h"

namespace taco::remote {

void say_parting_st(harp::Transport& transport, harp::PeerId peer, const Parting& parting);

class EndpointCore {
 public:
  explicit EndpointCore(std::uint64_t id, std::uint64_t part_bytes = harp::kPartBytes)
      : requester(id, part_bytes), owner(id), id_(id) {}

  std::uint64_t id() const { return id_; }
  bool is_connected_st() const { return is_connected_; }
  bool is_broken_st() const { return !broken_.ok(); }
  void connect_st(harp::PeerId peer, std::uint64_t endpoint, std::string name,
                  harp::Transport& transport);
  // Tells the peer that this is closed, which nothing that is still under way may follow; and
  // without a peer, all that have asked.
  void say_closed_st(harp::Transport& transport);

  // Another process says this to the endpoint; and one has ended.
  void hear_st(harp::PeerId peer, const Message& message, harp::Transport& transport);
  void peer_ended_st(harp::PeerId peer, const Status& why);

  Requester requester;
  MemoryOwner owner;

 private:
  // A message that came before this endpoint has connected.
  struct Said {
    Message message;
    std::vector<std::byte> carried;
  };
  struct Early {
    harp::PeerId peer = 0;
    std::uint64_t from = 0;
    std::vector<Said> said;
    bool is_told = false;   // that no more of it is kept
    bool is_ended = false;  // it, or its process: another one may have the place
  };

  void keep_early(harp::PeerId peer, const Message& message, harp::Transport& transport);
  Early* early_of(harp::PeerId peer, std::uint64_t from);
  void hear_early(Early& early, harp::Transport& transport);
  void hear_parting(Parting::Why why);

  const std::uint64_t id_;
  bool is_connected_ = false;
  harp::PeerId peer_ = 0;
  std::uint64_t peer_endpoint_ = 0;
  std::string peer_name_;
  Status broken_;
  std::vector<Early> early_;
};

}  // namespace taco::remote
