// The common part of benchmarks over bare sockets: two ranks that know each other's IPv4 address,
// TCP connections between them, and how such a program ends when something is wrong.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <map>
#include <string>

#include "base/clock.h"

namespace taco::bench {

// How long anything may be waited for.
inline constexpr int kPatienceMs = 5'000;

// Ends the process. `fail_call`: with errno's text.
[[noreturn]] void fail(const std::string& what);
[[noreturn]] void fail_call(const char* call);

// Until the descriptor has one of poll's `events`.
void wait_for(int fd, short events);

struct Ends {
  sockaddr_in own{}, other{};
  bool are_known() const { return own.sin_port != 0; }
};
// Rank 1 has the port, rank 0 the next one: both may be on one address.
Ends ends_of(int rank, const std::string& own, const std::string& other, std::uint64_t port);

// Rank 0's side of a connection, which waits for the other to listen (`begun`: when the attempt
// that succeeded began); and rank 1's.
int connect_to(const Ends& ends, Time* begun = nullptr);
int listen_at(const Ends& ends);
int accept_one(int listener);  // and closes the listener

// A program's arguments, names and values in turn. What is wrong with them ends it, with `usage`.
class Options {
 public:
  Options(int argc, char** argv, const char* usage);

  // The option given by that name, or the default. A number is above 0.
  bool choice(const std::string& name, const std::string& yes, const std::string& no,
              bool otherwise);
  std::uint64_t number(const std::string& name, std::uint64_t otherwise);
  double seconds(const std::string& name, double otherwise);
  std::string text(const std::string& name);  // which is needed
  // The ends given by --own, --other and --port, which are needed.
  Ends ends(int rank);

  // All that the program knows have been asked for.
  void finish() const;
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  std::string take(const std::string& name);  // empty: not given

  const char* const usage_;
  std::map<std::string, std::string> given_;
};

}  // namespace taco::bench
