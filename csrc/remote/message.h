// The messages of two endpoints, beside the bytes themselves. A request is a notice
// (harp/transport.h): which memory, and what with it. A short write carries its bytes; those of
// anything longer are a message of their own, and so is the answer, for which the requester waits.
// All come from outside the process: read_...() check their form, and their owner checks what they
// ask for. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "base/status.h"
#include "harp/service.h"
#include "harp/transport.h"
#include "remote/handle.h"

namespace taco::remote {

// Among those that share a Stack (harp/service.h): 1 is kept for a plugin.
inline constexpr harp::Service kRemoteMemory{2};

enum class Action : std::uint8_t { kWrite = 1, kRead };

struct Request {
  std::uint64_t endpoint = 0;  // whose memory
  std::uint64_t from = 0;      // the requester's endpoint
  std::uint64_t number = 0;    // counts up, by requester
  Action action = Action::kRead;
  RegionKey region;
  std::uint64_t offset = 0, bytes = 0;  // into the region; at least one byte
  std::span<const std::byte> carried;   // of a write: all bytes, or none if they follow
};

// The endpoint `from` answers nothing more to `endpoint`, or never will.
struct Parting {
  enum class Why : std::uint8_t {
    kClosed = 1,
    kOthers,   // its peer is another one
    kCrowded,  // it has no peer yet, and keeps no more requests until it has
  };

  std::uint64_t endpoint = 0;  // whom this is for
  std::uint64_t from = 0;
  Why why = Why::kClosed;
};

using Message = std::variant<Request, Parting>;
// The endpoint that it is for.
std::uint64_t addressee_of(const Message& message);

inline constexpr std::size_t kRequestBytes = 72;
inline constexpr std::size_t kMaxCarried = harp::kMaxNoticeBytes - kRequestBytes;
using MessageBytes = std::array<std::byte, harp::kMaxNoticeBytes>;

// How many bytes of `out` are the message.
std::size_t write_message(const Message& message, MessageBytes& out);
// kMismatch for anything that write_message() does not make. `carried` lies in `bytes`.
Result<Message> read_message(std::span<const std::byte> bytes);

// The owner's answer to a request: done, or why not. The ends of very long texts are left out, and
// a code that a requester would not expect of another process becomes kInternal.
inline constexpr std::size_t kMaxAnswerBytes = 512;
using AnswerBytes = std::array<std::byte, kMaxAnswerBytes>;
std::size_t write_answer(const Status& answer, AnswerBytes& out);
// kMismatch, too, for anything that write_answer() does not make.
Status read_answer(std::span<const std::byte> bytes);

// Under which keys they travel, by the request's number. A group of keys belongs to the endpoint
// that receives, so that two endpoints of one process can have each other as peers.
harp::MessageKey key_of_written(std::uint64_t owner, std::uint64_t number);
harp::MessageKey key_of_read(std::uint64_t requester, std::uint64_t number);
harp::MessageKey key_of_answer(std::uint64_t requester, std::uint64_t number);
// The signatures of bytes, and of answers.
std::uint64_t signature_of_transfer(std::uint64_t bytes);
std::uint64_t signature_of_answer();

}  // namespace taco::remote
