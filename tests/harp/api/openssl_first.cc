// A program that has begun to use OpenSSL before HARP ends by exit() while its engine runs and its
// listener listens: OpenSSL takes itself apart then, by a handler of its own that is older than all
// of HARP's. It has to end as it says, each time.
//
//   openssl_first [ROUNDS]
#include <openssl/evp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "harp/harp.h"

namespace {

constexpr int kEndsAsAsked = 7;

[[noreturn]] void give_up(const std::string& why) {
  fprintf(stderr, "openssl_first: %s\n", why.c_str());
  _exit(1);
}

template <class Value>
Value value_of(harp::Result<Value> result, const char* what) {
  if (!result.ok()) give_up(what + (": " + result.status().message()));
  return std::move(result).value();
}

void use_openssl() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned bytes = 0;
  if (EVP_Digest("a", 1, digest.data(), &bytes, EVP_sha256(), nullptr) != 1) give_up("EVP_Digest");
}

// Exchanges messages, all of them sealed, until one of the two has ended.
void exchange_for_ever(harp::Endpoint& endpoint, harp::Peer peer) {
  std::array<char, 4000> out{}, in{};
  for (std::uint32_t channel = 1;; channel = channel % 4 + 1) {
    auto sent = endpoint.send(peer, channel, out.data(), out.size());
    if (!endpoint.receive(peer, channel, in.data(), in.size()).wait().ok()) return;
    if (!sent.wait().ok()) return;
  }
}

[[noreturn]] void run(const std::string& own, const std::string& theirs, bool ends) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(60);
  if (ends) {
    atexit([] { usleep(100'000); });  // it has more to do at its end, after OpenSSL
    use_openssl();
  }
  // They stay open, and are there for their threads for as long as those run.
  auto& endpoint = *new auto(value_of(harp::Endpoint::open({.transport = "udp"}), "open"));
  const harp::Peer peer = value_of(endpoint.meet(own, theirs), "meet");
  if (!ends) {
    exchange_for_ever(endpoint, peer);
    _exit(0);
  }
  [[maybe_unused]] auto& listener = *new auto(value_of(endpoint.listen(), "listen"));
  std::thread([&endpoint, peer] {
    exchange_for_ever(endpoint, peer);
    for (;;) pause();
  }).detach();
  usleep(20'000);
  exit(kEndsAsAsked);
}

pid_t start(const std::string& own, const std::string& theirs, bool ends) {
  const pid_t child = fork();
  if (child == 0) run(own, theirs, ends);
  return child;
}

int status_of(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("TACO_HARP_SECURITY", "encrypt", 1);
  setenv("TACO_IFNAME", "lo", 1);
  const int rounds = argc > 1 ? atoi(argv[1]) : 50;
  int failed = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string folder = "/tmp/openssl_first-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) give_up("no folder in /tmp");
    const std::string a = folder + "/a", b = folder + "/b";
    const pid_t ends = start(a, b, true), other = start(b, a, false);
    const int status = status_of(ends);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != kEndsAsAsked) {
      fprintf(stderr, "round %d: it ended with status %#x\n", round, status);
      ++failed;
    }
    if (status_of(other) != 0) ++failed;
    for (const std::string& file : {a, b}) unlink(file.c_str());
    rmdir(folder.c_str());
  }
  printf("%d rounds, %d failures\n", rounds, failed);
  return failed == 0 ? 0 : 1;
}
