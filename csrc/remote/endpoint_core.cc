#include "remote/endpoint_core.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace taco::remote {
namespace {

// Endpoints that are kept of those who speak early, all together and of one process: an endpoint
// has one peer, and others speak to it by mistake, or to do harm.
constexpr std::size_t kMaxEarly = 16;
constexpr std::ptrdiff_t kMaxEarlyOfProcess = 2;
// All that one of them can have open, and its end.
constexpr std::size_t kMaxSaidEarly = kMaxRequests + 1;

std::uint64_t sender_of(const Message& message) {
  return std::visit([](const auto& which) { return which.from; }, message);
}

}  // namespace

void say_parting_st(harp::Transport& transport, harp::PeerId peer, const Parting& parting) {
  MessageBytes notice;
  transport.notify_st(peer, {notice.data(), write_message(parting, notice)});
}

void EndpointCore::connect_st(harp::PeerId peer, std::uint64_t endpoint, std::string name,
                              harp::Transport& transport) {
  is_connected_ = true;
  peer_ = peer;
  peer_endpoint_ = endpoint;
  peer_name_ = name;
  requester.connect_st(peer, endpoint, std::move(name));
  owner.connect_st(peer);
  for (Early& each : std::exchange(early_, {})) hear_early(each, transport);
}

// The program of an endpoint has named its one peer: nobody else gets anything, not even with a
// handle.
void EndpointCore::hear_st(harp::PeerId peer, const Message& message, harp::Transport& transport) {
  if (!is_connected_) return keep_early(peer, message, transport);
  const Request* const request = std::get_if<Request>(&message);
  if (peer != peer_ || sender_of(message) != peer_endpoint_) {
    if (request != nullptr)
      say_parting_st(transport, peer, {request->from, id_, Parting::Why::kOthers});
    return;
  }
  if (request != nullptr) return owner.take_st(*request, transport);
  hear_parting(std::get<Parting>(message).why);
}

void EndpointCore::hear_parting(Parting::Why why) {
  const std::string peer = "the peer of this endpoint, " + peer_name_;
  // It may connect yet, and ask for memory of this side.
  if (why == Parting::Why::kCrowded) {
    return requester.fail_st(Status(
        Code::kAborted, peer + " had not connected its endpoint when it was asked, and others ask "
                               "more of that than it keeps until then: open new endpoints, and "
                               "ask once both are connected"));
  }
  broken_ = Status(Code::kAborted,
                   peer + (why == Parting::Why::kClosed
                               ? ", has closed its endpoint"
                               : ", has connected its endpoint to another one: each endpoint has "
                                 "one peer, open one for each"));
  requester.fail_st(broken_);
}

EndpointCore::Early* EndpointCore::early_of(harp::PeerId peer, std::uint64_t from) {
  const auto found = std::ranges::find_if(
      early_, [&](const Early& each) { return each.peer == peer && each.from == from; });
  if (found != early_.end()) return &*found;
  const auto is_full = [&] {
    return early_.size() >= kMaxEarly ||
           std::ranges::count(early_, peer, &Early::peer) >= kMaxEarlyOfProcess;
  };
  if (is_full()) std::erase_if(early_, std::mem_fn(&Early::is_ended));
  if (is_full()) return nullptr;
  return &early_.emplace_back(Early{.peer = peer, .from = from});
}

// A requester whose request is dropped would wait for ever, unless it is told. Of one that keeps to
// the rules, all fits.
void EndpointCore::keep_early(harp::PeerId peer, const Message& message,
                              harp::Transport& transport) {
  const Request* const request = std::get_if<Request>(&message);
  Early* const early = early_of(peer, sender_of(message));
  if (early != nullptr) early->is_ended = request == nullptr;
  if (early != nullptr && early->said.size() < kMaxSaidEarly) {
    Said& said = early->said.emplace_back(Said{message, {}});
    if (request != nullptr) said.carried.assign(request->carried.begin(), request->carried.end());
    return;
  }
  if (request == nullptr || (early != nullptr && std::exchange(early->is_told, true))) return;
  say_parting_st(transport, peer, {request->from, id_, Parting::Why::kCrowded});
}

void EndpointCore::hear_early(Early& early, harp::Transport& transport) {
  const bool is_peer = early.peer == peer_ && early.from == peer_endpoint_;
  for (Said& each : early.said) {
    Request* const request = std::get_if<Request>(&each.message);
    if (request != nullptr) request->carried = each.carried;
    hear_st(early.peer, each.message, transport);
    if (!is_peer && request != nullptr) return;  // one Parting is enough
  }
}

void EndpointCore::peer_ended_st(harp::PeerId peer, const Status& why) {
  for (Early& each : early_) each.is_ended |= each.peer == peer;
  if (is_connected_ && peer == peer_ && broken_.ok()) broken_ = why;
}

// Those who have asked early wait for a word, too.
void EndpointCore::say_closed_st(harp::Transport& transport) {
  if (is_connected_ && !is_broken_st())
    say_parting_st(transport, peer_, {peer_endpoint_, id_, Parting::Why::kClosed});
  for (const Early& each : std::exchange(early_, {})) {
    if (!each.is_ended)
      say_parting_st(transport, each.peer, {each.from, id_, Parting::Why::kClosed});
  }
}

}  // namespace taco::remote
