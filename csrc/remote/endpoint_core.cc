#include "remote/endpoint_core.h"

#include <utility>

namespace taco::remote {

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
  for (Early& each : std::exchange(early_, {})) {
    if (Request* request = std::get_if<Request>(&each.message)) request->carried = each.carried;
    hear_st(each.peer, each.message, transport);
  }
}

// The program of an endpoint has named its one peer: nobody else gets anything, not even with a
// handle.
void EndpointCore::hear_st(harp::PeerId peer, const Message& message, harp::Transport& transport) {
  const Request* const request = std::get_if<Request>(&message);
  if (!is_connected_) {
    if (early_.size() >= kMaxRequests) return;
    early_.push_back({peer, message, {}});
    if (request != nullptr)
      early_.back().carried.assign(request->carried.begin(), request->carried.end());
    return;
  }
  const std::uint64_t from = request != nullptr ? request->from : std::get<Parting>(message).from;
  if (peer != peer_ || from != peer_endpoint_) {
    if (request != nullptr)
      say_parting_st(transport, peer, {request->from, id_, Parting::Why::kOthers});
    return;
  }
  if (request != nullptr) return owner.take_st(*request, transport);
  const bool is_closed = std::get<Parting>(message).why == Parting::Why::kClosed;
  broken_ = Status(Code::kAborted,
                   "the peer of this endpoint, " + peer_name_ +
                       (is_closed ? ", has closed its endpoint"
                                  : ", has connected its endpoint to another one: each endpoint "
                                    "has one peer, open one for each"));
  requester.fail_st(broken_);
}

void EndpointCore::peer_ended_st(harp::PeerId peer, const Status& why) {
  if (is_connected_ && peer == peer_ && broken_.ok()) broken_ = why;
}

void EndpointCore::say_closed_st(harp::Transport& transport) {
  if (!is_connected_ || is_broken_st()) return;
  say_parting_st(transport, peer_, {peer_endpoint_, id_, Parting::Why::kClosed});
}

}  // namespace taco::remote
