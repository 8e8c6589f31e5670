// The exchange of addresses between a process that has a ticket and the one that gave it away, at a
// TCP connection that lasts for no longer. The listener sends a challenge, the dialer its address,
// and the listener its own with the channel of the connection, or why there is none; all but the
// challenge in notes that only they can read (ticket.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "harp/api/ticket.h"
#include "harp/harp.h"

namespace harp {

// Before each note: its length, sealed.
using NoteLength = std::uint16_t;
inline constexpr std::size_t kMaxNoteBytes = 2048;
std::string framed(const std::string& sealed);

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
