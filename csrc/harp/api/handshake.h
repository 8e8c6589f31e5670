// The exchange of addresses between a process that has a ticket and the one that gave it away, at a
// TCP connection that lasts for no longer. The listener sends a challenge, the dialer one of its
// own and its call; and the listener its address with the channel of the connection, or why there
// is none; all but the challenges in notes that only they can read (ticket.h).
//
// A dialer that has waited in vain, or was hung up on, calls again, at another place maybe, and
// cannot know whether it was heard. So its call has a number, by which the listener knows it again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "harp/api/ticket.h"
#include "harp/harp.h"

namespace harp {

// Before each note: its length, sealed.
using NoteLength = std::uint16_t;
inline constexpr std::size_t kMaxNoteBytes = 2048;
std::string framed(const std::string& sealed);

// The dialer's part.
using CallNumber = std::array<std::byte, 16>;  // drawn for a dialer, however often it calls
struct Call {
  CallNumber number{};
  std::string address;
};
std::string encode(const Call& call);
// Nothing: it is none.
std::optional<Call> decode_call(std::string_view note);

// The listener's part.
struct Answer {
  bool accepted = false;
  std::uint32_t channel = 0;
  std::string text;  // its address, or why it refuses
};
std::string encode(const Answer& answer);
// kRendezvous: what the listener says against it, or nothing that can be read.
Result<Answer> decode_answer(std::string_view note);

}  // namespace harp
