// How two processes of one host connect: an abstract Unix socket (it has no file, so nothing is
// left behind), over which each sends one greeting with the descriptors of its memory. Nothing here
// blocks. Owner thread only.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "base/mapping.h"
#include "base/own_fd.h"
#include "base/status.h"
#include "harp/shm/layout.h"

namespace taco::harp {

using ShmSocketName = std::array<std::byte, 16>;

// The ranks of a host that may all call at once; those who find no place try again. Strangers may
// fill it, and how long a peer waits behind them is bounded by it.
inline constexpr int kShmBacklog = 512;

Result<OwnFd> shm_listen(const ShmSocketName& name);
// kPeerLost: nobody listens there (any more). kTimeout: its queue of connections is full, try
// again. kResource: no descriptor left.
Result<OwnFd> shm_connect(const ShmSocketName& name);
// The kernel's list of this host's Unix sockets, and whether it names one of ours: that somebody
// listens, without disturbing them. Empty where the list cannot be had or is too long to be worth
// reading. Any thread.
std::string shm_list_sockets();
bool shm_is_listed(const std::string& list, const ShmSocketName& name);
// An empty OwnFd when nobody waits.
Result<OwnFd> shm_accept(int listener);

// The descriptors that travel with a greeting, in this order.
struct ShmFiles {
  OwnFd half, arena, doorbell;
};

Status shm_send_greeting(int socket, const ShmGreeting& greeting, std::array<int, 3> files);

// Says that no descriptor is left here for this connection, so that the peer's error can say it.
void shm_send_refusal(int socket);

struct ShmReceived {
  // kNoRoom: no descriptor was left here for those that came; kRefused: nor there, for ours.
  enum class State { kNothing, kGreeting, kEnd, kNoRoom, kRefused, kNonsense };
  State state = State::kNothing;
  ShmGreeting greeting;
  ShmFiles files;
};
ShmReceived shm_receive_greeting(int socket);

// The process at the other end of a socket, as the kernel knows it.
struct ShmPeerProcess {
  pid_t pid = 0;  // in our PID namespace; 0 when it is not visible there
  bool same_user = false;
  OwnFd watch;  // a pidfd, readable once the process has ended; empty where the kernel gives none
};
ShmPeerProcess shm_peer_process(int socket, bool watch);

// A peer's segment, all of it, mapped for reading. Its size must be sealed, so that no access can
// fault.
Result<Mapping> shm_map_segment(int fd, std::size_t min_bytes);

// The memory that a peer's greeting has brought. Once it is mapped it needs no descriptor.
struct ShmPeerMemory {
  Mapping half, arena;
  OwnFd doorbell;
};
Result<ShmPeerMemory> shm_map(ShmFiles files);

}  // namespace taco::harp
