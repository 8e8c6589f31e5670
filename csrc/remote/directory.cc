#include "remote/directory.h"

#include <map>
#include <mutex>

#include "base/log.h"
#include "base/per_process.h"
#include "harp/engine/engine_call.h"

namespace taco::remote {
namespace {

struct Directories {
  std::mutex mutex;
  std::map<harp::Stack*, std::weak_ptr<Directory>> of_stack;
};

constinit PerProcess<Directories> directories;

}  // namespace

std::shared_ptr<Directory> Directory::attach(const std::shared_ptr<harp::Stack>& stack) {
  std::lock_guard lock(directories().mutex);
  std::shared_ptr<Directory> directory = directories().of_stack[stack.get()].lock();
  if (directory == nullptr) {
    directory = std::make_shared<Directory>(stack->engine().transport());
    directories().of_stack[stack.get()] = directory;
    // On the engine, since it may be reading the observer at this moment.
    harp::call_on_engine(
        stack->engine(),
        [&](harp::Transport&) { stack->set_observer(kRemoteMemory, directory.get()); },
        monotonic_now() + kPatienceForEngine);
  }
  ++directory->users_;
  return directory;
}

void Directory::detach(const std::shared_ptr<Directory>& directory,
                       const std::shared_ptr<harp::Stack>& stack) {
  std::lock_guard lock(directories().mutex);
  if (--directory->users_ > 0) return;
  directories().of_stack.erase(stack.get());
  harp::call_on_engine(
      stack->engine(), [stack](harp::Transport&) { stack->set_observer(kRemoteMemory, nullptr); },
      monotonic_now() + kPatienceForEngine);
}

void Directory::remove_st(EndpointCore& endpoint) {
  endpoints_.erase(endpoint.id());
  transport_.forget_group_st(endpoint.id());
}

void Directory::on_peer_lost_st(harp::PeerId peer, const Status& why) {
  for (const auto& [id, endpoint] : endpoints_) endpoint->peer_ended_st(peer, why);
}

void Directory::on_peer_left_st(harp::PeerId peer) {
  const Status left(Code::kPeerLost, "it has ended");
  for (const auto& [id, endpoint] : endpoints_) endpoint->peer_ended_st(peer, left);
}

void Directory::on_notice_st(harp::PeerId peer, std::span<const std::byte> bytes) {
  Result<Message> message = read_message(bytes);
  if (!message.ok()) {
    TACO_LOG_WARNING("remote", "%s", message.status().message().c_str());
    return;
  }
  const auto found = endpoints_.find(addressee_of(*message));
  if (found != endpoints_.end()) return found->second->hear_st(peer, *message, transport_);
  if (const Request* request = std::get_if<Request>(&*message)) {
    say_parting_st(transport_, peer, {request->from, request->endpoint, Parting::Why::kClosed});
  }
}

}  // namespace taco::remote
