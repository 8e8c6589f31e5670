#include "bare_sockets.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace taco::bench {

void fail(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::exit(1);
}

void fail_call(const char* call) { fail(std::string(call) + ": " + std::strerror(errno)); }

void wait_for(int fd, short events) {
  pollfd entry{fd, events, 0};
  const int found = poll(&entry, 1, kPatienceMs);
  if (found < 0 && errno != EINTR) fail_call("poll");
  if (found == 0) fail("nothing came for 5 s: a packet was lost, or the other end has gone");
}

namespace {

sockaddr_in address_of(const std::string& text, std::uint64_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1) {
    fail("no IPv4 address: \"" + text + "\"");
  }
  return address;
}

}  // namespace

Ends ends_of(int rank, const std::string& own, const std::string& other, std::uint64_t port) {
  if (port == 0 || port > 65'534) fail("--port must be 1 to 65534");
  if (rank != 0 && rank != 1) fail("--rank must be 0 or 1");
  return {address_of(own, rank == 0 ? port + 1 : port),
          address_of(other, rank == 0 ? port : port + 1)};
}

int connect_to(const Ends& ends, Time* begun) {
  for (int tries = 0; tries < kPatienceMs / 10; ++tries) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fail_call("socket");
    const auto* other = reinterpret_cast<const sockaddr*>(&ends.other);
    if (begun != nullptr) *begun = monotonic_now();
    if (connect(fd, other, sizeof ends.other) == 0) return fd;
    close(fd);
    poll(nullptr, 0, 10);
  }
  fail_call("connect");
}

int listen_at(const Ends& ends) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) fail_call("socket");
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const auto* own = reinterpret_cast<const sockaddr*>(&ends.own);
  if (bind(listener, own, sizeof ends.own) != 0) fail_call("bind");
  if (listen(listener, 1) != 0) fail_call("listen");
  return listener;
}

int accept_one(int listener) {
  wait_for(listener, POLLIN);
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) fail_call("accept");
  close(listener);
  return fd;
}

Options::Options(int argc, char** argv, const char* usage) : usage_(usage) {
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) refuse(std::string(argv[i]) + " needs a value");
    given_[argv[i]] = argv[i + 1];
  }
}

void Options::refuse(const std::string& what) const {
  std::fprintf(stderr, "%s\nusage: %s\n", what.c_str(), usage_);
  std::exit(2);
}

std::string Options::take(const std::string& name) {
  const auto given = given_.extract(name);
  return given.empty() ? std::string() : given.mapped();
}

bool Options::choice(const std::string& name, const std::string& yes, const std::string& no,
                     bool otherwise) {
  const std::string value = take(name);
  if (value.empty()) return otherwise;
  if (value != yes && value != no) refuse(name + " must be " + yes + " or " + no);
  return value == yes;
}

std::uint64_t Options::number(const std::string& name, std::uint64_t otherwise) {
  const std::string value = take(name);
  if (value.empty()) return otherwise;
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(value.c_str(), &end, 10);
  if (*end != '\0' || number == 0) {
    refuse(name + " must be a whole number above 0, not \"" + value + "\"");
  }
  return number;
}

double Options::seconds(const std::string& name, double otherwise) {
  const std::string value = take(name);
  return value.empty() ? otherwise : std::strtod(value.c_str(), nullptr);
}

std::string Options::text(const std::string& name) {
  const std::string given = take(name);
  if (given.empty()) refuse(name + " is needed");
  return given;
}

Ends Options::ends(int rank) {
  const std::string own = take("--own"), other = take("--other");
  const std::uint64_t port = number("--port", 0);
  if (own.empty() || other.empty() || port == 0) refuse("--own, --other and --port are needed");
  return ends_of(rank, own, other, port);
}

void Options::finish() const {
  if (!given_.empty()) refuse(given_.begin()->first + " is unknown");
}

}  // namespace taco::bench
