#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/condition.h"
#include "base/descriptors.h"
#include "base/far_future.h"
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

constexpr Duration kDialersTime = 30 * taco::kSecond;
// For one of several places of the listener's, and between two attempts.
constexpr Duration kAtOnePlace = 5 * taco::kSecond;
constexpr Duration kBeforeNext = 10 * taco::kMillisecond;

Status nobody(const taco::harp::Endpoint& place, const std::string& why) {
  return Status(Code::kRendezvous,
                "no listener answers at " + taco::harp::to_string(place) + ": " + why);
}

}  // namespace

struct Dialer::State : EndsUnlessCopied<Dialer::State> {
  State(Endpoint::State& endpoint, Ticket to) : owner(endpoint), ticket(std::move(to)) {}
  ~State();

  Status start() {
    return thread_.start("harp-dialer", [this] { set(dial()); });
  }
  Result<Connection> wait(Duration timeout);

  Endpoint::State& owner;
  const Ticket ticket;
  const CallNumber number = taco::random_value<CallNumber>();

 private:
  // Nothing: the listener has hung up, as it does when too many come at once.
  using Attempt = std::optional<Result<Connection>>;

  Result<Connection> dial();
  Attempt dial_at(const taco::harp::Endpoint& place, Time deadline);
  Result<Connection> connect_by_answer(std::string_view sealed, const Challenges& drawn);
  Result<taco::OwnFd> connect_to(const taco::harp::Endpoint& place, Time deadline);
  std::optional<std::string> exchange(int fd, const Challenges& drawn, Time deadline);
  void set(Result<Connection> result);
  void say_taken();

  std::mutex mutex_;
  taco::Condition over_;
  std::optional<Result<Connection>> result_;  // guarded by mutex_
  bool is_given_ = false;                     // the same
  taco::OwnFd call_;  // the same: answered, and the listener waits to hear that it was taken
  SideThread thread_;
};

// A connection that nobody has taken is none; the listener hears that by the call's end.
Dialer::State::~State() {
  thread_.end();
  if (result_ && result_->ok() && !is_given_) owner.disconnect(result_->value());
}

void Dialer::State::set(Result<Connection> result) {
  {
    std::lock_guard lock(mutex_);
    result_ = std::move(result);
  }
  over_.notify_all();
}

Result<Connection> Dialer::State::wait(Duration timeout) {
  TACO_RETURN_IF_ERROR(owner.usable());
  const Time limit = taco::later(taco::monotonic_now(), timeout);
  std::unique_lock lock(mutex_);
  while (!result_) {
    const Time now = taco::monotonic_now();
    if (now >= limit) return Status(Code::kTimeout, "the listener has not answered yet");
    over_.wait_for(lock, std::chrono::nanoseconds(std::min(limit - now, taco::kSecond)));
  }
  if (!result_->ok()) return *result_;
  if (std::exchange(is_given_, true)) return taco::invalid("this connection was given before");
  say_taken();
  return *result_;
}

void Dialer::State::say_taken() {
  const char taken = 1;
  (void)!send(call_.get(), &taken, sizeof taken, MSG_DONTWAIT | MSG_NOSIGNAL);
  call_.reset();
}

Result<Connection> Dialer::State::dial() {
  const Time deadline = taco::monotonic_now() + kDialersTime;
  for (;;) {
    Status last(Code::kRendezvous, "the ticket names no place to come to");
    bool busy = false;
    for (const auto& place : ticket.places) {
      const Time limit = std::min(deadline, taco::monotonic_now() + kAtOnePlace);
      Attempt attempt = dial_at(place, limit);
      if (attempt && attempt->ok()) return std::move(*attempt);
      busy |= !attempt;
      last = attempt ? attempt->status() : nobody(place, "it has hung up");
    }
    if (!busy || taco::monotonic_now() >= deadline) return last;
    if (!thread_.await({}, taco::monotonic_now() + kBeforeNext)) return last;
  }
}

Result<taco::OwnFd> Dialer::State::connect_to(const taco::harp::Endpoint& place, Time deadline) {
  const sockaddr* const address = taco::harp::sockaddr_of(place);
  taco::OwnFd fd(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return nobody(place, taco::system_error_text(errno));
  if (connect(fd.get(), address, place.size) == 0) return fd;
  if (errno != EINPROGRESS) return nobody(place, std::strerror(errno));
  if (!thread_.await(fd.get(), POLLOUT, deadline)) return nobody(place, "in time");
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error != 0) return nobody(place, std::strerror(error));
  return fd;
}

Dialer::State::Attempt Dialer::State::dial_at(const taco::harp::Endpoint& place, Time deadline) {
  auto connected = connect_to(place, deadline);
  if (!connected.ok()) return connected.status();
  const int fd = connected->get();
  Challenges drawn{.dialers = taco::random_value<Challenge>()};
  if (!thread_.read_all(fd, drawn.listeners.data(), drawn.listeners.size(), deadline)) {
    return std::nullopt;
  }
  const auto answer = exchange(fd, drawn, deadline);
  if (!answer) return std::nullopt;
  auto connection = connect_by_answer(*answer, drawn);
  if (connection.ok()) {
    std::lock_guard lock(mutex_);
    call_ = std::move(*connected);
  }
  return connection;
}

// The listener's answer to this process's call, sealed; nothing: it has hung up.
std::optional<std::string> Dialer::State::exchange(int fd, const Challenges& drawn, Time deadline) {
  const std::string call = encode(Call{number, owner.stack->address()});
  const std::string note =
      std::string(reinterpret_cast<const char*>(drawn.dialers.data()), drawn.dialers.size()) +
      framed(seal_note(ticket.secret, drawn, Writer::kDialer, call));
  NoteLength length = 0;
  if (!thread_.write_all(fd, note.data(), note.size(), deadline) ||
      !thread_.read_all(fd, &length, sizeof length, deadline)) {
    return std::nullopt;
  }
  std::string sealed(length, '\0');
  if (!thread_.read_all(fd, sealed.data(), sealed.size(), deadline)) return std::nullopt;
  return sealed;
}

Result<Connection> Dialer::State::connect_by_answer(std::string_view sealed,
                                                    const Challenges& drawn) {
  const auto note = open_note(ticket.secret, drawn, Writer::kListener, sealed);
  if (!note) return Status(Code::kRendezvous, "who answers there has not given this ticket away");
  auto answer = decode_answer(*note);
  if (!answer.ok()) return answer.status();
  const auto peer = owner.connect(answer->text);
  if (!peer.ok()) return peer.status();
  const Connection connection{peer.value(), answer->channel};
  owner.keep(connection);
  return connection;
}

Dialer::Dialer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Dialer::Dialer(Dialer&&) noexcept = default;
Dialer& Dialer::operator=(Dialer&&) noexcept = default;
Dialer::~Dialer() = default;

Result<Connection> Dialer::wait(Duration timeout) { return state_->wait(timeout); }

Result<Dialer> Endpoint::dial(std::string_view ticket) {
  TACO_RETURN_IF_ERROR(state_->usable());
  auto to = decode_ticket(ticket);
  if (!to.ok()) return to.status();
  auto made = std::make_unique<Dialer::State>(*state_, std::move(to).value());
  TACO_RETURN_IF_ERROR(made->start());
  return Dialer(std::move(made));
}

}  // namespace harp
