// The plain network plugin for NCCL that HARP's is compared with: a TCP connection a comm, sockets
// that do not block, each call going on with whatever there is to do, as NCCL's own sockets do it
// without their helper threads. Two of its kind only; nothing is checked.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ext/nccl/abi_v11.h"

namespace {

using harp::nccl::abi::DeviceHandle;
using harp::nccl::abi::kSuccess;
using harp::nccl::abi::kSystemError;
using harp::nccl::abi::Result;

struct Comm;

// A message: its length, then its bytes.
struct Request {
  Comm* comm;
  bool in_use;
  std::byte* data;
  std::uint64_t bytes;  // of the message; of a receive, once its length is there
  std::size_t moved;    // of length and bytes together
};

struct Comm {
  int fd = -1;
  bool sends = false;
  // In their order: from `first` on, `open` of them.
  std::array<Request, 32> requests{};
  std::size_t first = 0, open = 0;
};

struct Handle {
  std::uint32_t address;
  std::uint16_t port;
  std::uint16_t unused;
  int fd_plus_one;  // of the connection that is being made
};

// -1: the connection has failed; else how many bytes.
ssize_t move_some(const Comm& comm, Request& request) {
  constexpr std::size_t kHead = sizeof request.bytes;
  if (comm.sends) {
    iovec parts[2];
    msghdr message{};
    message.msg_iov = parts;
    if (request.moved < kHead) {
      parts[0] = {reinterpret_cast<std::byte*>(&request.bytes) + request.moved,
                  kHead - request.moved};
      parts[1] = {request.data, request.bytes};
      message.msg_iovlen = 2;
    } else {
      const std::size_t at = request.moved - kHead;
      parts[0] = {request.data + at, request.bytes - at};
      message.msg_iovlen = 1;
    }
    return sendmsg(comm.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (request.moved < kHead) {
    return recv(comm.fd, reinterpret_cast<std::byte*>(&request.bytes) + request.moved,
                kHead - request.moved, MSG_DONTWAIT);
  }
  const std::size_t at = request.moved - kHead;
  return recv(comm.fd, request.data + at, request.bytes - at, MSG_DONTWAIT);
}

bool is_done(const Request& request) {
  return request.moved >= sizeof request.bytes &&
         request.moved == sizeof request.bytes + request.bytes;
}

Result go_on(Comm& comm) {
  while (comm.open > 0) {
    Request& request = comm.requests[comm.first];
    while (!is_done(request)) {
      const ssize_t moved = move_some(comm, request);
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return kSuccess;
      if (moved <= 0) return kSystemError;
      request.moved += static_cast<std::size_t>(moved);
    }
    comm.first = (comm.first + 1) % comm.requests.size();
    --comm.open;
  }
  return kSuccess;
}

Result post(void* to, void* data, std::size_t bytes, void** request) {
  auto& comm = *static_cast<Comm*>(to);
  *request = nullptr;
  Request& next = comm.requests[(comm.first + comm.open) % comm.requests.size()];
  if (comm.open == comm.requests.size() || next.in_use) return kSuccess;
  next = {&comm, true, static_cast<std::byte*>(data), bytes, 0};
  ++comm.open;
  *request = &next;
  return go_on(comm);
}

Result init(void** ctx, std::uint64_t, harp::nccl::abi::CommConfig*, harp::nccl::abi::Logger,
            harp::nccl::abi::ProfilerCallback) {
  *ctx = nullptr;
  return kSuccess;
}

Result devices(int* ndev) {
  *ndev = 1;
  return kSuccess;
}

// Where others reach this host: BENCH_ADDRESS, or on this host alone.
Result listen_at(void*, int, void* handle, void** comm) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const char* const own = getenv("BENCH_ADDRESS");
  sockaddr_in at{};
  at.sin_family = AF_INET;
  inet_pton(AF_INET, own == nullptr ? "127.0.0.1" : own, &at.sin_addr);
  socklen_t size = sizeof at;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&at), size) != 0 || listen(fd, 16) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    return kSystemError;
  }
  const Handle told{at.sin_addr.s_addr, at.sin_port, 0, 0};
  std::memcpy(handle, &told, sizeof told);
  *comm = new Comm{.fd = fd};
  return kSuccess;
}

Comm* comm_of(int fd, bool sends) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return new Comm{.fd = fd, .sends = sends};
}

Result connect_to(void*, int, void* handle, void** comm, DeviceHandle**) {
  *comm = nullptr;
  Handle told;
  std::memcpy(&told, handle, sizeof told);
  if (told.fd_plus_one == 0) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = told.address;
    at.sin_port = told.port;
    if (connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 && errno != EINPROGRESS) {
      return kSystemError;
    }
    told.fd_plus_one = fd + 1;
    std::memcpy(handle, &told, sizeof told);
  }
  pollfd ready{told.fd_plus_one - 1, POLLOUT, 0};
  if (poll(&ready, 1, 0) == 1) *comm = comm_of(told.fd_plus_one - 1, true);
  return kSuccess;
}

Result accept_at(void* listening, void** comm, DeviceHandle**) {
  const int fd =
      accept4(static_cast<Comm*>(listening)->fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  *comm = fd < 0 ? nullptr : comm_of(fd, false);
  return kSuccess;
}

Result reg_mr(void*, void*, std::size_t, int, void** mhandle) {
  *mhandle = nullptr;
  return kSuccess;
}

Result dereg_mr(void*, void*) { return kSuccess; }

Result isend(void* comm, void* data, std::size_t size, int, void*, void*, void** request) {
  return post(comm, data, size, request);
}

Result irecv(void* comm, int, void** data, std::size_t* sizes, int*, void**, void**,
             void** request) {
  return post(comm, data[0], sizes[0], request);
}

Result test(void* asked, int* done, int* sizes) {
  auto& request = *static_cast<Request*>(asked);
  *done = 0;
  const Result went = is_done(request) ? kSuccess : go_on(*request.comm);
  if (went != kSuccess || !is_done(request)) return went;
  *done = 1;
  if (sizes != nullptr) *sizes = static_cast<int>(request.bytes);
  request.in_use = false;
  return kSuccess;
}

Result close_comm(void* comm) {
  close(static_cast<Comm*>(comm)->fd);
  delete static_cast<Comm*>(comm);
  return kSuccess;
}

Result finalize(void*) { return kSuccess; }

constexpr harp::nccl::abi::v11::Net table() {
  harp::nccl::abi::v11::Net net{};
  net.name = "TCP";
  net.init = init;
  net.devices = devices;
  net.listen = listen_at;
  net.connect = connect_to;
  net.accept = accept_at;
  net.regMr = reg_mr;
  net.deregMr = dereg_mr;
  net.isend = isend;
  net.irecv = irecv;
  net.test = test;
  net.closeSend = close_comm;
  net.closeRecv = close_comm;
  net.closeListen = close_comm;
  net.finalize = finalize;
  return net;
}

}  // namespace

extern "C" __attribute__((
    visibility("default"))) constinit const harp::nccl::abi::v11::Net ncclNetPlugin_v11 = table();
