// Two processes that talk by HARP: a server sends back what a client says, as often as asked.
//
//   harp_echo server /shared/folder
//   harp_echo client /shared/folder 1000      on this host or another one that has the folder
//
// They tell each other their addresses by two files in a folder that nobody else can read, and that
// is a new one each time.
#include <harp/harp.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

constexpr std::uint32_t kCount = 0, kEcho = 1;  // channels

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "harp_echo: %s\n", why.c_str());
  std::exit(1);
}

template <class T>
T value_of(harp::Result<T> result, const char* what) {
  if (!result.ok()) give_up(what + (": " + result.status().message()));
  return std::move(result).value();
}

int main(int argc, char** argv) {
  if (argc < 3) give_up("usage: harp_echo server|client FOLDER [ROUNDS]");
  const bool serves = std::strcmp(argv[1], "server") == 0;
  const std::string folder = argv[2], server = folder + "/server", client = folder + "/client";
  auto endpoint = value_of(harp::Endpoint::open(), "open");
  const harp::Peer peer =
      value_of(serves ? endpoint.meet(server, client) : endpoint.meet(client, server), "meet");

  std::uint64_t rounds = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  value_of((serves ? endpoint.receive(peer, kCount, &rounds, sizeof rounds)
                   : endpoint.send(peer, kCount, &rounds, sizeof rounds))
               .wait(),
           "rounds");

  const auto memory = value_of(harp::Memory::allocate(4096), "memory");
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const std::string said = "round " + std::to_string(i);
    auto incoming = endpoint.receive(peer, kEcho, memory.data(), memory.size());
    if (!serves) value_of(endpoint.send(peer, kEcho, said.data(), said.size()).wait(), "send");
    const std::size_t bytes = value_of(incoming.wait(), "receive");
    if (serves) value_of(endpoint.send(peer, kEcho, memory.data(), bytes).wait(), "send");
    if (said != std::string(reinterpret_cast<char*>(memory.data()), bytes)) {
      give_up("what came back is not what was said");
    }
  }
  std::printf("%llu echoes with %s\n", static_cast<unsigned long long>(rounds),
              endpoint.describe(peer).c_str());
}
