#include "remote/directory.h"

#include <map>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "base/per_process.h"
#include "harp/engine/engine_call.h"

namespace taco::remote {
namespace {

// Stacks are told apart by more than their addresses, of which a later Stack may have one again
// while a Directory of an earlier one is kept.
struct Directories {
  std::mutex mutex;
  std::map<std::weak_ptr<harp::Stack>, std::weak_ptr<Directory>, std::owner_less<>> of_stack;
  std::vector<std::shared_ptr<const void>> kept;
};

constinit PerProcess<Directories> directories;

}  // namespace

std::shared_ptr<Directory> Directory::attach(const std::shared_ptr<harp::Stack>& stack) {
  std::lock_guard lock(directories().mutex);
  std::shared_ptr<Directory> directory = directories().of_stack[stack].lock();
  if (directory == nullptr) {
    directory = std::make_shared<Directory>(stack->engine().transport());
    directories().of_stack[stack] = directory;
  }
  ++directory->users_;
  return directory;
}

void Directory::detach(const std::shared_ptr<Directory>& directory,
                       const std::shared_ptr<harp::Stack>& stack) {
  std::lock_guard lock(directories().mutex);
  if (--directory->users_ > 0) return;
  directories().of_stack.erase(stack);
  // On the engine, since it may be reading the observer at this moment.
  const bool is_told = harp::call_on_engine(
      stack->engine(), [stack](harp::Transport&) { stack->set_observer(kRemoteMemory, nullptr); },
      monotonic_now() + kPatienceForEngine);
  if (!is_told && stack->usable().ok()) directories().kept.push_back(directory);
}

void Directory::keep(const std::shared_ptr<Directory>& directory,
                     const std::shared_ptr<EndpointCore>& core) {
  std::lock_guard lock(directories().mutex);
  directories().kept.push_back(core);
  directories().kept.push_back(directory);
}

// Together with the endpoint, in one call, so that none is added to a Directory that nobody asks.
void Directory::add_st(EndpointCore& endpoint, harp::Stack& stack) {
  add_st(endpoint);
  stack.set_observer(kRemoteMemory, this);
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
