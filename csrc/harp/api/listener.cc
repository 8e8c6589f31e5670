#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/condition.h"
#include "base/descriptors.h"
#include "base/far_future.h"
#include "base/log.h"
#include "base/random.h"
#include "harp/address.h"
#include "harp/api/endpoint_state.h"
#include "harp/api/ends_unless_copied.h"
#include "harp/api/handshake.h"
#include "harp/api/side_thread.h"
#include "harp/api/ticket.h"

namespace harp {
namespace {

using taco::Time;

// A guest that has not said all that it has to say within this time goes. So does the first of too
// many.
constexpr Duration kGuestsTime = 5 * taco::kSecond;
constexpr std::size_t kMaxGuests = 64;
constexpr int kBacklog = 1024;
// Dialers that were answered and have not said that the connection was taken. Of more the first is
// not waited for.
constexpr std::size_t kMaxAnswered = 64;
// Calls that are known again: many more than are made in the half minute that a dialer calls for.
constexpr std::size_t kMaxKnownCalls = 4096;

// A guest says: its challenge, how long its note is, and that.
constexpr std::size_t kGuestsHead = sizeof(Challenge) + sizeof(NoteLength);

Status socket_failure(const char* what) {
  return Status(Code::kResource, std::string(what) + " failed: " + taco::system_error_text(errno));
}

struct Door {
  taco::OwnFd socket;
  std::uint16_t port = 0;
};

// For IPv4 and IPv6, where this host has that.
Result<Door> open_door() {
  for (const int family : {AF_INET6, AF_INET}) {
    taco::OwnFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) continue;
    const int off = 0;
    if (family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);
    socklen_t bytes = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* address = reinterpret_cast<sockaddr*>(&any);
    if (bind(fd.get(), address, bytes) != 0 || listen(fd.get(), kBacklog) != 0 ||
        getsockname(fd.get(), address, &bytes) != 0) {
      continue;
    }
    return Door{std::move(fd), taco::harp::port_of(taco::harp::endpoint_of(address))};
  }
  return socket_failure("a port to listen at");
}

// This host's, as its peers know them.
std::vector<taco::harp::Endpoint> places_of(const std::string& address, std::uint16_t port) {
  std::vector<taco::harp::Endpoint> places;
  auto own = taco::harp::decode(address);
  const auto paths = own.ok() ? own->paths : std::vector<taco::harp::PathAddress>{};
  for (const auto& path : paths) {
    const auto same = [&](const auto& place) {
      return taco::harp::same_host_address(place, path.endpoint);
    };
    if (places.size() < kMaxTicketHosts && std::ranges::none_of(places, same)) {
      places.push_back(path.endpoint);
    }
  }
  if (places.empty()) {  // nobody comes but from this host
    sockaddr_in loopback{};
    loopback.sin_family = AF_INET;
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    places.push_back(taco::harp::endpoint_of(reinterpret_cast<const sockaddr*>(&loopback)));
  }
  for (auto& place : places) taco::harp::set_port(place, port);
  return places;
}

}  // namespace

struct Listener::State : EndsUnlessCopied<Listener::State> {
  explicit State(Endpoint::State& endpoint) : owner(endpoint) {}
  ~State();

  Status start();
  Result<Connection> accept(Duration timeout);

  Endpoint::State& owner;
  Ticket ticket;

 private:
  // A process that has come, until it is answered.
  struct Guest {
    taco::OwnFd socket;
    Challenge challenge{};  // of it
    Time leaves_at = 0;
    std::vector<char> said = {};

    // True: there is nothing more to hear from it.
    bool listen();
    // The length of all that it has to say; the most that is allowed until that is known.
    std::size_t whole() const;
    bool has_said_all() const { return said.size() == whole(); }
    std::string_view sealed() const {
      return std::string_view(said.data(), said.size()).substr(kGuestsHead);
    }
    Challenges drawn() const;
    bool has_left() const;
  };

  // A call that was answered by a connection, which is queued once. A dialer that ends without
  // having said that it was taken has none.
  struct Known {
    CallNumber number;
    Connection connection;
    taco::OwnFd socket;  // until that is said
  };

  void serve();
  void let_in();
  void hear(Guest& guest);
  bool tell(Guest& guest, const std::string& sealed);
  Known* known(const CallNumber& number);
  Answer answer_to(const Call& call, const Known* before, Connection* connection);
  void queue(Known answered);
  void hear_answered(std::span<const pollfd> seen);
  bool take_back(const Connection& connection);

  taco::OwnFd door_;
  std::vector<Guest> guests_;  // the thread's own
  std::deque<Known> known_;    // the same; the oldest first
  std::mutex mutex_;
  taco::Condition come_;
  std::deque<Connection> connections_;  // guarded by mutex_
  SideThread thread_;                   // ends before the rest
};

std::size_t Listener::State::Guest::whole() const {
  if (said.size() < kGuestsHead) return kGuestsHead + kMaxNoteBytes;
  NoteLength length;
  std::memcpy(&length, said.data() + sizeof(Challenge), sizeof length);
  return kGuestsHead + length;
}

Challenges Listener::State::Guest::drawn() const {
  Challenges drawn{.listeners = challenge};
  std::memcpy(drawn.dialers.data(), said.data(), drawn.dialers.size());
  return drawn;
}

// One that has given up waiting calls again, or never.
bool Listener::State::Guest::has_left() const {
  char more;
  return taco::monotonic_now() >= leaves_at ||
         recv(socket.get(), &more, sizeof more, MSG_PEEK | MSG_DONTWAIT) == 0;
}

bool Listener::State::Guest::listen() {
  std::array<char, kGuestsHead + kMaxNoteBytes> heard;
  const ssize_t bytes = recv(socket.get(), heard.data(), heard.size(), MSG_DONTWAIT);
  if (bytes <= 0) return bytes == 0 || (errno != EAGAIN && errno != EINTR);
  said.insert(said.end(), heard.data(), heard.data() + bytes);
  return said.size() >= whole() || whole() > kGuestsHead + kMaxNoteBytes;
}

// Connections that nobody has taken are none.
Listener::State::~State() {
  thread_.end();
  for (const Connection& left : connections_) owner.disconnect(left);
}

Status Listener::State::start() {
  auto door = open_door();
  if (!door.ok()) return door.status();
  door_ = std::move(door->socket);
  ticket.secret = taco::random_value<taco::harp::Secret>();
  ticket.places = places_of(owner.stack->address(), door->port);
  return thread_.start("harp-listener", [this] { serve(); });
}

Result<Connection> Listener::State::accept(Duration timeout) {
  TACO_RETURN_IF_ERROR(owner.usable());
  const Time limit = taco::later(taco::monotonic_now(), timeout);
  std::unique_lock lock(mutex_);
  while (connections_.empty()) {
    const Time now = taco::monotonic_now();
    if (now >= limit) return Status(Code::kTimeout, "nobody has come with this ticket yet");
    come_.wait_for(lock, std::chrono::nanoseconds(std::min(limit - now, taco::kSecond)));
  }
  const Connection first = connections_.front();
  connections_.pop_front();
  return first;
}

void Listener::State::serve() {
  for (;;) {
    std::vector<pollfd> all{{door_.get(), POLLIN, 0}};
    Time deadline = taco::kNever;
    for (const Guest& guest : guests_) {
      all.push_back({guest.socket.get(), POLLIN, 0});
      deadline = std::min(deadline, guest.leaves_at);
    }
    for (const Known& each : known_) {
      if (each.socket) all.push_back({each.socket.get(), POLLIN, 0});
    }
    if (!thread_.await(all, deadline)) return;
    hear_answered(std::span(all).subspan(1 + guests_.size()));
    std::vector<Guest> staying;
    for (std::size_t i = 0; i < guests_.size(); ++i) {  // the first that came is heard first
      Guest& guest = guests_[i];
      const bool ends = all[i + 1].revents != 0 && guest.listen();
      if (ends && guest.has_said_all()) hear(guest);
      if (!ends && taco::monotonic_now() < guest.leaves_at) staying.push_back(std::move(guest));
    }
    guests_ = std::move(staying);
    if (all.front().revents != 0) let_in();
  }
}

// One at a time, so that no crowd keeps those waiting who are in.
void Listener::State::let_in() {
  Guest guest{
      .socket = taco::OwnFd(accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK))};
  if (!guest.socket) {
    if (taco::is_shortage(errno)) {
      thread_.await({}, taco::monotonic_now() + 10 * taco::kMillisecond);
    }
    return;
  }
  guest.challenge = taco::random_value<Challenge>();
  guest.leaves_at = taco::monotonic_now() + kGuestsTime;
  const ssize_t sent = send(guest.socket.get(), guest.challenge.data(), guest.challenge.size(),
                            MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(guest.challenge.size())) return;
  if (guests_.size() >= kMaxGuests) guests_.erase(guests_.begin());
  guests_.push_back(std::move(guest));
}

bool Listener::State::tell(Guest& guest, const std::string& sealed) {
  const std::string note = framed(sealed);
  return thread_.write_all(guest.socket.get(), note.data(), note.size(), guest.leaves_at);
}

void Listener::State::hear(Guest& guest) {
  if (guest.has_left()) return;
  const auto note = open_note(ticket.secret, guest.drawn(), Writer::kDialer, guest.sealed());
  const auto call = note ? decode_call(*note) : std::nullopt;
  if (!call) {
    TACO_LOG_WARNING("harp", "somebody came to a listener of this process without its ticket");
    tell(guest, "");
    return;
  }
  Known* const before = known(call->number);
  Connection connection;
  const Answer answer = answer_to(*call, before, &connection);
  const bool told =
      tell(guest, seal_note(ticket.secret, guest.drawn(), Writer::kListener, encode(answer)));
  if (!answer.accepted) return;
  if (before != nullptr) {  // what it called by before is no more
    if (told) before->socket = std::move(guest.socket);
  } else if (told) {
    queue({call->number, connection, std::move(guest.socket)});
  } else {
    owner.disconnect(connection);
  }
}

Listener::State::Known* Listener::State::known(const CallNumber& number) {
  const auto found = std::ranges::find(known_, number, &Known::number);
  return found == known_.end() ? nullptr : &*found;
}

// The same to a call that is made again, which was answered `before`.
Answer Listener::State::answer_to(const Call& call, const Known* before, Connection* connection) {
  if (before != nullptr) {
    *connection = before->connection;
  } else {
    const auto peer = owner.connect(call.address);
    if (!peer.ok()) return {.text = peer.status().message()};
    *connection = {peer.value(), owner.give_channel(peer.value())};
    owner.keep(*connection);
  }
  return {.accepted = true, .channel = connection->channel, .text = owner.stack->address()};
}

void Listener::State::queue(Known answered) {
  if (known_.size() >= kMaxKnownCalls) known_.pop_front();
  known_.push_back(std::move(answered));
  {
    std::lock_guard lock(mutex_);
    connections_.push_back(known_.back().connection);
  }
  come_.notify_one();
  const auto waits = [](const Known& each) { return static_cast<bool>(each.socket); };
  if (std::ranges::count_if(known_, waits) > static_cast<std::ptrdiff_t>(kMaxAnswered)) {
    std::ranges::find_if(known_, waits)->socket.reset();
  }
}

// `seen`: at the sockets of those that have one.
void Listener::State::hear_answered(std::span<const pollfd> seen) {
  auto at_socket = seen.begin();
  for (auto each = known_.begin(); each != known_.end();) {
    bool ended = false;
    if (each->socket && (at_socket++)->revents != 0) {
      char taken;
      const ssize_t got = recv(each->socket.get(), &taken, sizeof taken, MSG_DONTWAIT);
      ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
      if (ended || got > 0) each->socket.reset();
    }
    each = ended && take_back(each->connection) ? known_.erase(each) : each + 1;
  }
}

// False: it was accepted before.
bool Listener::State::take_back(const Connection& connection) {
  {
    std::lock_guard lock(mutex_);
    const auto queued = std::ranges::find_if(connections_, [&](const Connection& each) {
      return each.peer.id == connection.peer.id && each.channel == connection.channel;
    });
    if (queued == connections_.end()) return false;
    connections_.erase(queued);
  }
  owner.disconnect(connection);
  return true;
}

Listener::Listener(std::unique_ptr<State> state) : state_(std::move(state)) {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

std::string Listener::ticket() const { return encode(state_->ticket); }
Result<Connection> Listener::accept(Duration timeout) { return state_->accept(timeout); }

Result<Listener> Endpoint::listen() {
  TACO_RETURN_IF_ERROR(state_->usable());
  auto made = std::make_unique<Listener::State>(*state_);
  TACO_RETURN_IF_ERROR(made->start());
  return Listener(std::move(made));
}

}  // namespace harp
