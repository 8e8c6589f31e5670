#include "harp/tools/perf_connection.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "base/clock.h"

namespace taco::harp::perf {
namespace {

constexpr int kPatience = 120;  // s, beyond what any job takes without a byte
constexpr std::size_t kLongestLine = 8192;
constexpr Duration kConnectTime = 10 * kSecond;

Status socket_failure(const std::string& what) {
  return Status(Code::kRendezvous, what + ": " + strerror(errno));
}

Status gone() {
  return Status(Code::kRendezvous, "the other side of the measurement has closed its connection");
}

Status connection_failure() {
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    return Status(Code::kTimeout, "the other side of the measurement has not answered for " +
                                      std::to_string(kPatience) + " s");
  }
  return socket_failure("the connection between the two sides of the measurement");
}

struct FreeAddresses {
  void operator()(addrinfo* all) const { freeaddrinfo(all); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> addresses_of(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const char* const name = host.empty() ? nullptr : host.c_str();
  const int error = getaddrinfo(name, std::to_string(port).c_str(), &hints, &found);
  if (error == 0) return Addresses(found);
  return invalid("\"" + host + "\" is no host that can be found: " + gai_strerror(error));
}

std::uint16_t port_in(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Connection::Connection(Socket fd) : fd_(std::move(fd)) {
  const int on = 1;
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const timeval patience{kPatience, 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

Result<Connection> Connection::to(const std::string& host, std::uint16_t port) {
  auto addresses = addresses_of(host, port, 0);
  if (!addresses.ok()) return addresses.status();
  Status last = invalid("\"" + host + "\" has no address");
  for (const addrinfo* each = addresses->get(); each != nullptr; each = each->ai_next) {
    Socket fd(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval time{kConnectTime / kSecond, 0};
    if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    if (fd && connect(fd.get(), each->ai_addr, each->ai_addrlen) == 0) {
      return Connection(std::move(fd));
    }
    if (errno == EINPROGRESS) errno = ETIMEDOUT;
    last = socket_failure("no harp-perf --server answers at " + host + ", port " +
                          std::to_string(port));
  }
  return last;
}

Status Connection::send(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd_.get(), from, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return connection_failure();
    from += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return {};
}

Status Connection::receive(void* data, std::size_t bytes, bool polls) {
  auto* to = static_cast<char*>(data);
  const Time limit = polls ? monotonic_now() + kPatience * kSecond : 0;
  while (bytes > 0) {
    const ssize_t received = recv(fd_.get(), to, bytes, polls ? MSG_DONTWAIT : 0);
    if (received == 0) return gone();
    if (received < 0) {
      const bool is_empty = errno == EAGAIN || errno == EWOULDBLOCK;
      if (errno != EINTR && !(polls && is_empty && monotonic_now() < limit)) {
        return connection_failure();
      }
      if (polls) sched_yield();
      continue;
    }
    to += received;
    bytes -= static_cast<std::size_t>(received);
  }
  return {};
}

Status Connection::send_line(const std::string& line) {
  const std::string whole = line + "\n";
  return send(whole.data(), whole.size());
}

// A byte at a time: what follows the line may be a measurement's.
Result<std::string> Connection::receive_line() {
  std::string line;
  for (char each = 0; line.size() < kLongestLine; line += each) {
    TACO_RETURN_IF_ERROR(receive(&each, 1));
    if (each == '\n') return line;
  }
  return Status(Code::kRendezvous, "the other side does not speak as harp-perf does");
}

Result<std::string> Connection::expect(const std::string& first_word) {
  auto line = receive_line();
  if (!line.ok()) return line;
  const std::size_t space = line->find(' ');
  const std::string rest = space == std::string::npos ? "" : line->substr(space + 1);
  if (line->substr(0, space) == first_word) return rest;
  if (line->starts_with("failed ")) {
    return Status(Code::kRendezvous, "the other side failed: " + rest);
  }
  return Status(Code::kRendezvous, "the other side does not speak as harp-perf does: \"" +
                                       line->substr(0, 100) + "\" where \"" + first_word +
                                       "\" was due");
}

std::string Connection::other_host() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  char text[NI_MAXHOST] = "";
  if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "";
  getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, text, sizeof text, nullptr, 0,
              NI_NUMERICHOST);
  const std::string name = text;
  return name.starts_with("::ffff:") ? name.substr(7) : name;
}

Result<Listener> Listener::at(const std::string& address, std::uint16_t port) {
  auto addresses = addresses_of(address, port, AI_PASSIVE);
  if (!addresses.ok()) return addresses.status();
  Status last;
  for (const addrinfo* each = addresses->get(); each != nullptr; each = each->ai_next) {
    Socket fd(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd && bind(fd.get(), each->ai_addr, each->ai_addrlen) == 0 && listen(fd.get(), 16) == 0) {
      return Listener(std::move(fd));
    }
    last = socket_failure("port " + std::to_string(port) + (address.empty() ? "" : " of ") +
                          address + " cannot be listened at");
  }
  return last;
}

Result<Connection> Listener::accept() {
  for (;;) {
    Socket fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd) return Connection(std::move(fd));
    if (errno != EINTR && errno != ECONNABORTED) return socket_failure("accept");
  }
}

std::uint16_t Listener::port() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return port_in(address);
}

}  // namespace taco::harp::perf
