// The bytes by which a process that knows nothing else of another reaches it: where that listens,
// and a secret, by which the two tell each other their addresses.
//
// A note is sealed under a key of its own: it comes from the ticket's secret, what the listener and
// the dialer have drawn for this exchange, and who writes it. So a note that was overheard is of no
// use to anybody, nor is it a second time; and neither side, nor who plays one, can have the other
// use a key again.
//
// Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "harp/harp.h"
#include "harp/nic.h"
#include "harp/secret.h"

namespace harp {

inline constexpr std::size_t kMaxTicketHosts = 2;

struct Ticket {
  taco::harp::Secret secret{};
  // Where it listens, the nearest first: ports and all, kMaxTicketHosts at most.
  std::vector<taco::harp::Endpoint> places;
};

std::string encode(const Ticket& ticket);
// kInvalidArgument: no ticket. kVersionMismatch: another version's.
Result<Ticket> decode_ticket(std::string_view bytes);

using Challenge = std::array<std::byte, 16>;
struct Challenges {
  Challenge listeners{}, dialers{};
};
enum class Writer : std::uint8_t { kDialer, kListener };

std::string seal_note(const taco::harp::Secret& secret, const Challenges& drawn, Writer writer,
                      std::string_view note);
// Nothing: not such a note.
std::optional<std::string> open_note(const taco::harp::Secret& secret, const Challenges& drawn,
                                     Writer writer, std::string_view sealed);

}  // namespace harp
