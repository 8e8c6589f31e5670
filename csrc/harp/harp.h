// HARP for C++ programs: messages between processes, inside a host by shared memory and between
// hosts by packets, without torch. docs/harp.md shows how to build against it.
//
//   auto endpoint = harp::Endpoint::open();               // once a process, as a rule
//   publish(endpoint->address());                         // by a store, a socket ...; or meet()
//   auto peer = endpoint->connect(address_of_the_other);  // both sides connect
//   endpoint->send(*peer, kChannel, data, bytes).wait();  // receive() is its counterpart
//
// The messages of one channel between two processes are numbered on either side: the n-th send
// is matched with the n-th receive, whichever is posted first, and channels do not wait for each
// other. After a transfer that failed or was cancelled the two sides of its channel may count
// differently: go on with another channel. A channel that has been used takes a little memory until
// it is ended (end_channel, disconnect).
//
// Where only one side can be told of the other, that one dials the other's ticket (Listener); then
// both are connected, and given a channel. Programs choose channels below kFirstGivenChannel.
//
// Failures are values: Status and Result (base/status.h) carry a code and a text for people.
// Everything may be called by any thread, but close() and the end of an Endpoint come after all
// other calls. A forked child has no part in what its parent has opened. Whatever is open when a
// program ends by exit() is closed then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

#define HARP_API __attribute__((visibility("default")))

namespace harp {

using taco::Code;
using taco::Duration;
using taco::Result;
using taco::Status;

inline constexpr Duration kForever = taco::kNever;
inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;

inline constexpr std::uint32_t kFirstGivenChannel = std::uint32_t{1} << 31;

struct EndpointOptions {
  // Endpoints that agree in the first two and in `engine` share an engine.
  std::string transport;  // auto, shm or udp; empty: as TACO_TRANSPORT says
  std::string driver;     // empty: as TACO_HARP_DRIVER says
  std::string towards;  // a host of the others', whose route decides on the interface; may be empty
  // One of the process's engines(), from 0. They share nothing, so that transfers of several go on
  // by as many cores at once. Which one the other side's Endpoint has does not matter.
  int engine = 0;
};

// How many a process has: as TACO_HARP_ENGINES says. kInvalidArgument: it is no such number.
HARP_API Result<int> engines();

// Another process, as one Endpoint knows it.
struct Peer {
  std::uint32_t id = 0;
};

// Page-aligned memory on the largest pages that the host gives, all of it there from the start, so
// that no transfer waits for a page; any other memory serves as well. Freed with the object.
class HARP_API Memory {
 public:
  // kResource: the host has not that much.
  static Result<Memory> allocate(std::size_t bytes);
  Memory(Memory&&) noexcept;
  Memory& operator=(Memory&&) noexcept;
  ~Memory();

  std::byte* data() const;
  std::size_t size() const;

 private:
  struct State;
  explicit Memory(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Memory of the program's own that transfers will use again and again: its pages are brought in at
// once, to be written where it may be, and drivers whose hardware has to know memory beforehand are
// told of it once instead of with each transfer. Shared memory and the kernel's UDP gain nothing
// more by it. The memory stays the program's, and outlives its registration.
class HARP_API Registration {
 public:
  // kInvalidArgument: there is no memory, or not all of it is this process's, or a part of it is
  // registered already.
  static Result<Registration> of(void* data, std::size_t bytes);
  Registration(Registration&&) noexcept;
  Registration& operator=(Registration&&) noexcept;
  ~Registration();

  // kInvalidArgument: a transfer that is not done uses it; it goes on being registered. Idempotent.
  // The object's end does not ask: a transfer under way keeps what it needs until it is done.
  Status end();

 private:
  struct State;
  explicit Registration(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A send or a receive under way. Its memory is HARP's until it is done: that of a send may be read,
// that of a receive written. Its end cancels what is not done, and waits until HARP has let go.
// A send is done when the other process has the message, or this one a copy of it, as of small
// ones, whether or not the other one runs: close() waits until that has it, for a second at most,
// and so does flush() where a program ends otherwise.
class HARP_API Transfer {
 public:
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;
  ~Transfer();

  bool done() const;
  // The bytes of the message, once it is done. kTimeout: it is not done by then, goes on, and may
  // be waited for again. kPeerLost: the other process has ended, left or fallen silent, and what it
  // had sent is gone with it.
  // kMismatch: the message was longer than the memory of its receive, where nothing was written.
  Result<std::size_t> wait(Duration timeout = kForever);

 private:
  friend class Endpoint;
  struct State;
  explicit Transfer(std::unique_ptr<State> state);
  void end();
  std::unique_ptr<State> state_;
};

// The other side of a ticket, and a channel that no other connection of the two has. Balanced by
// disconnect(), with which the channel ends here.
struct Connection {
  Peer peer;
  std::uint32_t channel = 0;
};

// Waits at a TCP port for processes that dial its ticket, on a thread of its own. Whoever comes
// without the ticket learns nothing, and keeps nobody else waiting. Its Endpoint outlives it.
class HARP_API Listener {
 public:
  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  // Opaque bytes, kTicketBytes of them: where to come, and a secret, as in address().
  static constexpr std::size_t kTicketBytes = 64;
  std::string ticket() const;
  // The next that has come: each once, the one that was heard first before the others. kTimeout:
  // none has. One whose dialer has ended before it gave it to its program is taken back until then.
  Result<Connection> accept(Duration timeout = kForever);

 private:
  friend class Endpoint;
  struct State;
  explicit Listener(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A process on its way to a Listener, on a thread of its own. Its end gives up, if it is not there
// yet. Its Endpoint outlives it.
class HARP_API Dialer {
 public:
  Dialer(Dialer&&) noexcept;
  Dialer& operator=(Dialer&&) noexcept;
  ~Dialer();

  // Gives the connection once. kTimeout: it goes on. kRendezvous: nobody answers there, or has for
  // half a minute; dial again.
  Result<Connection> wait(Duration timeout = kForever);

 private:
  friend class Endpoint;
  struct State;
  explicit Dialer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// When the memory of a receive is read.
enum class Read : std::uint8_t {
  kWhenDone,  // once the transfer is done
  // While the message comes, too, by a GPU for example: aligned words of 8 bytes appear whole, and
  // of each line (128 bytes, counted from the message's beginning) the last word appears last.
  kMeanwhile,
};

// A network interface that messages leave by.
struct Interface {
  std::string name;
  std::uint32_t mbits = 0;  // a second, as its driver says; 0: not known
  // The PCI device behind it, by which a program knows what lies near: a folder of /sys. "": there
  // is none, as behind interfaces that are made in software, or the driver does not say.
  std::string pci;
  // As a number, the same for all processes of the host, by any driver; 0: it has none.
  std::uint64_t hardware_address = 0;
};

class HARP_API Endpoint {
 public:
  static Result<Endpoint> open(const EndpointOptions& options = {});
  Endpoint(Endpoint&&) noexcept;
  Endpoint& operator=(Endpoint&&) noexcept;
  ~Endpoint();

  // Opaque bytes (less than 1 KiB) by which others reach this process. They hold its secret: show
  // them to those alone who may connect.
  std::string address() const;
  // The ways that messages leave by: "shm+udp(eth0)".
  std::string transport() const;
  // Those in transport(), the best first; as of the start.
  std::vector<Interface> interfaces() const;

  // Either side connects to the other; nothing is sent before the first transfer. kInvalidArgument:
  // no address. kVersionMismatch: of a process with another version. kRendezvous: of one that
  // cannot be reached from here.
  Result<Peer> connect(std::string_view address);
  // Connects to a process that calls meet() with the two files the other way round: each puts its
  // address into one, for its user alone, and waits for the other. Former files would mislead them:
  // a folder of its own for each time. kRendezvous: the file cannot be written, or the other one
  // did not come in time.
  Result<Peer> meet(const std::string& own, const std::string& theirs,
                    Duration timeout = 30 * taco::kSecond);
  // kResource: no port, or no thread.
  Result<Listener> listen();
  // kInvalidArgument: no ticket. kVersionMismatch: of another version. kResource: no thread.
  Result<Dialer> dial(std::string_view ticket);
  // Balances connect() and meet(). With an Endpoint's last connection to a peer, channels that it
  // was given with that peer end as well.
  void disconnect(Peer peer);
  // Balances Listener::accept() and Dialer::wait(), once no transfer is under way on the channel.
  // What the other side has sent on it and nobody received is dropped, and so is what still comes.
  void disconnect(const Connection& connection);
  // Ends a channel of the program's own choice with that peer in the same way, for all Endpoints
  // of this process and engine; the other side ends it for itself. Neither uses it again:
  // transfers on it are refused here. Idempotent. kInvalidArgument: a transfer of this Endpoint's
  // is under way on it, it was given by a connection, or there is no such peer.
  Status end_channel(Peer peer, std::uint32_t channel);
  // "10.0.0.2:41234 (pid 77 on nodeb)"
  std::string describe(Peer peer) const;

  // At most kMaxMessageBytes; none is a message, too.
  Transfer send(Peer to, std::uint32_t channel, const void* data, std::size_t bytes);
  // Takes a message of up to `bytes`. Of what is read meanwhile, `data` is a multiple of 8.
  Transfer receive(Peer from, std::uint32_t channel, void* data, std::size_t bytes,
                   Read read = Read::kWhenDone);

  // For programs that look at done() in a loop of their own instead of waiting: carries transfers
  // on by one turn, on this thread; true if anything happened. While such calls follow each other
  // within a millisecond, none of HARP's threads is woken by what is sent or arrives. A program
  // that stops calling loses nothing: a thread of HARP's goes on a millisecond later.
  bool poll();

  // Waits until every process has what was sent to it by sends that are done, and what is under way
  // to it. False: not in time. For a program that ends in another way than by exit(), and leaves
  // Endpoints open.
  bool flush(Duration timeout = taco::kSecond);

  // Transfers under way fail (kAborted), and what was connected is disconnected. The last user of
  // HARP in a process, endpoint or process group, says goodbye to every peer and waits for at most
  // a second until they know. Idempotent.
  void close();

 private:
  friend class Listener;
  friend class Dialer;
  struct State;
  explicit Endpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace harp
