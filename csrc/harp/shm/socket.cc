#include "harp/shm/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>

#include "base/descriptors.h"
#include "base/file.h"
#include "base/names.h"

namespace taco::harp {
namespace {

constexpr std::size_t kLongestList = 256 * 1024;
#ifdef SO_PEERPIDFD
constexpr int kPeerPidfd = SO_PEERPIDFD;
#else
constexpr int kPeerPidfd = 77;  // since Linux 6.5; older headers do not name it
#endif

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};

std::string text_of(const ShmSocketName& name) { return "taco-" + hex_of(name); }

AbstractAddress abstract_address(const ShmSocketName& name) {
  AbstractAddress result;
  result.address.sun_family = AF_UNIX;
  const std::string text = text_of(name);
  static_assert(sizeof result.address.sun_path > 1 + 5 + 2 * sizeof name);
  memcpy(result.address.sun_path + 1, text.data(), text.size());  // a leading zero: abstract
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return result;
}

Status failure(Code code, const char* what) {
  const int error = errno;
  return Status(says_no_descriptor(error) ? Code::kResource : code,
                std::string("shared memory: ") + what + ": " + system_error_text(error));
}

bool is_hung_up(int socket) {
  pollfd one{socket, 0, 0};
  return poll(&one, 1, 0) > 0 && (one.revents & POLLHUP) != 0;
}

OwnFd make_socket() {
  return OwnFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace

Result<OwnFd> shm_listen(const ShmSocketName& name) {
  OwnFd fd = make_socket();
  if (!fd) return failure(Code::kResource, "socket");
  const AbstractAddress at = abstract_address(name);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0)
    return failure(Code::kResource, "bind");
  if (listen(fd.get(), kShmBacklog) != 0) return failure(Code::kResource, "listen");
  return fd;
}

Result<OwnFd> shm_connect(const ShmSocketName& name) {
  OwnFd fd = make_socket();
  if (!fd) return failure(Code::kResource, "socket");
  const AbstractAddress at = abstract_address(name);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) == 0) return fd;
  if (errno == EAGAIN || errno == EINTR) return failure(Code::kTimeout, "connect");
  if (errno == ECONNREFUSED) {
    return Status(Code::kPeerLost,
                  "it listens no more: it has left (it destroyed its process group) or its process "
                  "has ended");
  }
  return failure(Code::kPeerLost, "connect");
}

std::string shm_list_sockets() { return read_file("/proc/net/unix", kLongestList); }

bool shm_is_listed(const std::string& list, const ShmSocketName& name) {
  return list.find("@" + text_of(name)) != std::string::npos;
}

Result<OwnFd> shm_accept(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) return OwnFd(fd);
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return OwnFd();
  return failure(Code::kResource, "accept");
}

Status shm_send_greeting(int socket, const ShmGreeting& greeting, std::array<int, 3> files) {
  iovec data{const_cast<ShmGreeting*>(&greeting), sizeof greeting};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof files)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof files);
  memcpy(CMSG_DATA(header), files.data(), sizeof files);
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(sizeof greeting)) return Status();
  return failure(errno == ETOOMANYREFS ? Code::kResource : Code::kPeerLost, "greeting");
}

void shm_send_refusal(int socket) {
  ShmGreeting refusal;
  refusal.refused_at = std::max(descriptor_limit(), std::uint32_t{1});
  // Where it cannot be said, the end of the connection says enough.
  [[maybe_unused]] const ssize_t sent =
      send(socket, &refusal, sizeof refusal, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ShmReceived shm_receive_greeting(int socket) {
  ShmReceived received;
  iovec data{&received.greeting, sizeof received.greeting};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return received;
  if (got <= 0) {
    received.state = ShmReceived::State::kEnd;
    return received;
  }
  // Every descriptor that came must be taken, or it leaks.
  OwnFd fds[8];
  std::size_t count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < here && count < 8; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      fds[count++] = OwnFd(fd);
    }
  }
  const bool readable = got == static_cast<ssize_t>(sizeof(ShmGreeting)) &&
                        (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
                        received.greeting.magic == kShmMagic;
  const bool refused = readable && count == 0 && received.greeting.refused_at != 0;
  const bool whole = readable && count == 3;
  // The kernel hands over as many as there is room for.
  const bool cut = (message.msg_flags & MSG_CTRUNC) != 0;
  received.state = whole     ? ShmReceived::State::kGreeting
                   : refused ? ShmReceived::State::kRefused
                   : cut     ? ShmReceived::State::kNoRoom
                             : ShmReceived::State::kNonsense;
  if (whole) received.files = ShmFiles{std::move(fds[0]), std::move(fds[1]), std::move(fds[2])};
  return received;
}

ShmPeerProcess shm_peer_process(int socket, bool want_watch) {
  ShmPeerProcess process;
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return process;
  process.pid = credentials.pid;
  process.same_user = credentials.uid == geteuid();
  if (!process.same_user || !want_watch) return process;
  int watch = -1;
  length = sizeof watch;
  if (getsockopt(socket, SOL_SOCKET, kPeerPidfd, &watch, &length) != 0) watch = -1;
  // By number only where the kernel cannot say it better, and while the process is there: its
  // number may be another one's once it has gone.
  const bool by_number = watch < 0 && errno == ENOPROTOOPT && process.pid > 0;
  if (by_number) watch = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  process.watch = OwnFd(watch);
  if (by_number && is_hung_up(socket)) process.watch.reset();
  return process;
}

Result<Mapping> shm_map_segment(int fd, std::size_t min_bytes) {
  struct stat file {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &file) != 0 ||
      file.st_size < static_cast<off_t>(min_bytes))
    return Status(Code::kInternal, "shared memory: a peer's segment is not what it should be");
  auto mapping =
      Mapping::of_file(fd, static_cast<std::size_t>(file.st_size), Mapping::Access::kRead);
  if (!mapping.ok()) return mapping.status().with_prefix("shared memory: a peer's segment: ");
  return mapping;
}

Result<ShmPeerMemory> shm_map(ShmFiles files) {
  auto half = shm_map_segment(files.half.get(), sizeof(ShmHalf));
  if (!half.ok()) return half.status();
  auto arena = shm_map_segment(files.arena.get(), kShmFirstBlock);
  if (!arena.ok()) return arena.status();
  return ShmPeerMemory{std::move(*half), std::move(*arena), std::move(files.doorbell)};
}

}  // namespace taco::harp
