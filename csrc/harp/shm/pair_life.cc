// The life of a link: connecting, being lost, parting.
#include <sys/epoll.h>

#include <new>

#include "base/descriptors.h"
#include "base/log.h"
#include "harp/shm/admission.h"
#include "harp/shm/pair_link.h"
#include "harp/shm/pull.h"

namespace taco::harp {
namespace {

const std::atomic<std::uint64_t> kNothingConsumed{0};

}  // namespace

PairLink::PairLink(ShmHost& host, const ShmAddress& peer, const std::string& description,
                   std::uint32_t id)
    : host_(host), peer_(peer), description_(description), id_(id) {}

PairLink::~PairLink() {
  // A peer that is not told would wait for us until our process ends.
  if (is_connected() && own_goodbye_.is(OwnGoodbye::kUnsaid)) {
    leave();
    flush();
  }
  if (is_connected()) host_.stats.links.fetch_sub(1, std::memory_order_relaxed);
  drop_sends();
}

std::string PairLink::describe() const {
  if (!description_.empty()) return description_;
  if (process_.pid > 0) return "pid " + std::to_string(process_.pid) + " on this host";
  return "a process on this host";
}

void PairLink::connect() {
  if (!connection_.is(PairConnection::kIdle)) return;
  connection_.go(PairConnection::kConnecting);
  if (Status status = make_half(); !status.ok()) return lose(status.message());
  start_connecting();
}

Status PairLink::make_half() {
  if (half_ != nullptr) return Status();
  auto memory = Arena::create("taco-link", sizeof(ShmHalf), Arena::Sharing::kShared);
  if (!memory.ok()) return memory.status();
  half_memory_ = std::move(memory).value();
  half_fd_ = OwnFd(half_memory_.fd());
  half_memory_.disown_fd();
  TACO_RETURN_IF_ERROR(half_memory_.commit(0, sizeof(ShmHalf)));
  half_ = new (half_memory_.data()) ShmHalf;
  ring_out_.emplace(half_->ring, kShmRingBytes, half_->produced, kNothingConsumed);
  return Status();
}

// May fail for want of room in the peer's queue of connections: run_deferred() tries again.
void PairLink::start_connecting() {
  auto socket = shm_connect(peer_.name);
  if (!socket.ok()) {
    if (socket.status().code() != Code::kTimeout) miss(socket.status().message());
    return;
  }
  process_ = shm_peer_process(socket->get(), host_.watch_processes);
  // A process that has taken a dead peer's name gets none of our memory.
  if (!process_.same_user) return miss("another user has its socket");
  if (Status status = greet(socket->get()); !status.ok()) return miss(status.message());
  sockets_[0] = std::move(*socket);
  watch(sockets_[0].get(), kShmSocket);
}

Status PairLink::greet(int socket) {
  ShmGreeting greeting;
  greeting.proof = shm_proof(peer_, host_.address.incarnation, host_.job_key);
  greeting.incarnation = host_.address.incarnation;
  greeting.probe_address = reinterpret_cast<std::uint64_t>(&host_.probe_word);
  greeting.probe_value = host_.probe_word;
  greeting.watches_process = static_cast<bool>(process_.watch);
  Status sent = shm_send_greeting(socket, greeting,
                                  {half_fd_.get(), host_.arena_fd.get(), host_.doorbell.get()});
  half_fd_.reset();  // there is no second one
  if (sent.ok()) connection_.go(PairConnection::kGreeted);
  return sent;
}

void PairLink::watch(int fd, std::uint32_t kind) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = std::uint64_t{kind} << 32 | id_;
  epoll_ctl(host_.events.get(), EPOLL_CTL_ADD, fd, &event);
}

void PairLink::on_greeting(const ShmGreeting& greeting, Result<ShmPeerMemory> memory,
                           ShmPeerProcess process, OwnFd socket) {
  if (is_connected() || connection_.is(PairConnection::kLost)) return;
  if (connection_.is(PairConnection::kIdle)) connection_.go(PairConnection::kConnecting);
  if (Status status = make_half(); !status.ok()) {
    if (socket && is_out_of_descriptors()) host_.refuse(socket.get());
    return lose(status.message());
  }
  bool gone = false;
  if (socket) {
    // Both may have connected at once. That is no conflict: each side has one half to give, and it
    // does not matter which connection brought it.
    process_ = std::move(process);
    // A peer that has gone already left messages all the same.
    gone = connection_.is(PairConnection::kConnecting) && !greet(socket.get()).ok();
    sockets_[1] = std::move(socket);
    watch(sockets_[1].get(), kShmSocket);
  }
  if (!memory.ok()) return lose(memory.status().message());
  go_up(greeting, std::move(memory).value());
  if (gone) on_process_ended();
}

void PairLink::go_up(const ShmGreeting& greeting, ShmPeerMemory memory) {
  peer_half_memory_ = std::move(memory.half);
  peer_arena_ = std::move(memory.arena);
  peer_half_ = reinterpret_cast<const ShmHalf*>(peer_half_memory_.data());
  peer_page_ = reinterpret_cast<const ShmPage*>(peer_arena_.data());
  if (peer_half_->magic != kShmMagic || peer_half_->version != kShmVersion ||
      peer_page_->magic != kShmMagic || peer_page_->version != kShmVersion)
    return lose("its memory does not begin as it should");
  peer_doorbell_ = std::move(memory.doorbell);
  ring_in_.emplace(peer_half_->ring, kShmRingBytes, peer_half_->produced, half_->consumed);
  ring_out_->set_consumed(peer_half_->consumed);
  connection_.go(PairConnection::kUp);
  half_->maps_peer.store(1, std::memory_order_release);
  host_.stats.links.fetch_add(1, std::memory_order_relaxed);
  last_heard_ = host_.now;
  if (process_.watch) watch(process_.watch.get(), kShmProcess);
  peer_watches_ = greeting.watches_process != 0;
  part_with_sockets();
  Status may_pull(Code::kUnsupported, host_.why_no_pull);
  const bool wanted = host_.pull != ShmPull::kNever;
  if (wanted && !process_.watch) {
    may_pull = Status(Code::kUnsupported, "the kernel gives no descriptor of the peer's process");
  } else if (wanted) {
    may_pull = shm_probe_pull(process_.pid, greeting.probe_address, greeting.probe_value);
  }
  if (may_pull.ok())
    push_slot(ShmRecordType::kMayPull);
  else
    host_.why_no_pull = may_pull.message();
  dirty_ = true;  // what was published before the peer could be rung for
  TACO_LOG_DEBUG("harp", "shared memory: linked with %s%s", describe().c_str(),
                 may_pull.ok() ? "" : (", without pulls: " + may_pull.message()).c_str());
}

// Where each maps the other's memory and watches the other's process, the sockets have nothing more
// to tell.
void PairLink::part_with_sockets() {
  if (!sockets_[0] && !sockets_[1]) return;
  if (!process_.watch || !peer_watches_ || !peer_is_up()) return;
  for (OwnFd& socket : sockets_) socket.reset();
}

void PairLink::on_no_descriptor() {
  if (is_connected()) return;
  lose("this process has no file descriptor left for it: " + descriptor_limit_text());
}

// One of our sockets is readable: the answer to our greeting, or the end of the connection.
void PairLink::on_socket() {
  for (OwnFd& socket : sockets_) {
    if (!socket) continue;
    ShmReceived received = shm_receive_greeting(socket.get());
    switch (received.state) {
      case ShmReceived::State::kNothing:
        continue;
      case ShmReceived::State::kGreeting:
        if (received.greeting.incarnation == peer_.incarnation &&
            shm_proves(received.greeting.proof, host_.address, peer_.incarnation, host_.job_key))
          on_greeting(received.greeting, shm_map(std::move(received.files)), {}, {});
        continue;
      case ShmReceived::State::kNoRoom:
        shm_send_refusal(socket.get());  // to a peer that maps our memory by now
        socket.reset();
        on_no_descriptor();
        return;
      case ShmReceived::State::kRefused:
        socket.reset();
        if (!peer_is_up()) {
          lose("it has no file descriptor left for this process: its limit is " +
               std::to_string(received.greeting.refused_at) + " (ulimit -n), allow it more");
        }
        return;
      case ShmReceived::State::kNonsense:
        socket.reset();
        if (!is_connected()) lose("it answered in another language");
        return;
      case ShmReceived::State::kEnd:
        socket.reset();
        if (sockets_[0] || sockets_[1]) continue;
        if (!peer_is_up()) {
          miss("it refused the connection, or left or ended before it answered" +
               host_.refusals_text());
        } else if (!process_.watch) {
          on_process_ended();
        }
        continue;
    }
  }
}

void PairLink::on_process_ended() {
  if (has_verdict()) return;
  if (is_connecting()) return miss("it left or its process ended before it answered");
  lose(
      "its process ended without saying goodbye; look in its log for a crash, a kill or an "
      "out-of-memory kill");
  process_.watch.reset();
}

// Never inside a call of the Matcher's: run_deferred() tells it.
void PairLink::lose(const std::string& why, PairVerdict verdict) {
  if (connection_.is(PairConnection::kLost) || has_verdict()) return;
  verdict_.go(verdict);
  why_lost_ = why;
}

void PairLink::break_off(const std::string& how) {
  if (connection_.is(PairConnection::kLost) || verdict_.is(PairVerdict::kBroken)) return;
  if (!has_verdict()) why_lost_ = how;
  verdict_.go(PairVerdict::kBroken);
}

void PairLink::finish_losing(const Status& why) {
  if (is_connected()) host_.stats.links.fetch_sub(1, std::memory_order_relaxed);
  connection_.go(PairConnection::kLost);
  if (events_ != nullptr) events_->on_lost(why);
  drop_sends();
  incoming_.clear();
  outbox_.clear();
  outbox_sent_ = answer_bytes_ = 0;
  for (OwnFd& socket : sockets_) socket.reset();
  process_.watch.reset();
}

// Tells the Matcher that the peer left or was lost, once everything it had published is delivered.
bool PairLink::report_end() {
  const bool has_left = !peer_goodbye_.is(PeerGoodbye::kUnsaid);
  if (connection_.is(PairConnection::kLost) || (!has_verdict() && !has_left)) return false;
  if (reads()) {
    if (!ring_in_->empty()) return false;
    for (const Incoming& incoming : incoming_)
      if (!has_verdict() || incoming.record.head.type == ShmRecordType::kPiece) return false;
  }
  if (peer_goodbye_.is(PeerGoodbye::kRead)) {
    peer_goodbye_.go(PeerGoodbye::kTold);
    push_slot(ShmRecordType::kGoodbyeSeen);
    events_->on_left();
    return true;
  }
  if (!has_verdict()) return false;
  PeerLoss loss;
  loss.address = describe();
  loss.may_have_left = verdict_.is(PairVerdict::kMissed);
  if (last_heard_ != 0) loss.last_heard_s = static_cast<double>(host_.now - last_heard_) / kSecond;
  finish_losing(Status(why_lost_, loss));
  return true;
}

void PairLink::leave() {
  if (!own_goodbye_.is(OwnGoodbye::kUnsaid) || !is_open()) return;
  own_goodbye_.go(OwnGoodbye::kSaid);
  push_slot(ShmRecordType::kGoodbye);
}

bool PairLink::busy() const {
  if (!is_open() || has_verdict()) return false;
  if (!finished_.empty() || !outbox_.empty()) return true;
  if (sends_.size() > free_sends_.size()) {
    for (const Send& send : sends_)
      if (send.request != nullptr) return true;
  }
  return own_goodbye_.is(OwnGoodbye::kSaid) && peer_goodbye_.is(PeerGoodbye::kUnsaid);
}

}  // namespace taco::harp
