#include "harp/api/ticket.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "harp/address.h"
#include "harp/session/sealing.h"
#include "kernels/kernels.h"

namespace harp {
namespace {

using taco::harp::Digest;
using taco::harp::PacketKey;
using taco::harp::Secret;
using taco::harp::wire::Header;
using taco::harp::wire::kTagBytes;

constexpr std::uint32_t kMagic = 0x6b745068;  // "hPtk"
constexpr std::uint16_t kVersion = 3;

struct Place {
  std::array<std::byte, 16> address;  // all zero: none
  std::uint16_t port;                 // in network order
};
struct Record {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t unused;
  Secret secret;
  Place places[kMaxTicketHosts];
  std::uint32_t checksum;  // of all before
};
static_assert(sizeof(Record) == Listener::kTicketBytes, "a ticket has no padding");

std::uint32_t checksum_of(const Record& record) {
  return taco::kernels::crc32c(0, &record, offsetof(Record, checksum));
}

Digest note_key(const Secret& secret, const Challenges& drawn, Writer writer) {
  static constexpr char kDialed[] = "taco harp dialer's note", kListened[] = "taco harp its answer";
  const std::span<const char> purpose =
      writer == Writer::kDialer ? std::span<const char>(kDialed) : std::span<const char>(kListened);
  const auto salt = std::as_bytes(std::span(&drawn, 1));
  return taco::harp::hkdf_expand(taco::harp::hkdf_extract(salt, secret), std::as_bytes(purpose));
}

}  // namespace

std::string encode(const Ticket& ticket) {
  Record record{};
  record.magic = kMagic;
  record.version = kVersion;
  record.secret = ticket.secret;
  for (std::size_t i = 0; i < std::min(ticket.places.size(), kMaxTicketHosts); ++i) {
    record.places[i] = {taco::harp::mapped_address(ticket.places[i]),
                        taco::harp::wire_port_of(ticket.places[i])};
  }
  record.checksum = checksum_of(record);
  return {reinterpret_cast<const char*>(&record), sizeof record};
}

Result<Ticket> decode_ticket(std::string_view bytes) {
  Record record{};
  if (bytes.size() < sizeof record) {
    return taco::invalid("no ticket of a listener's: " + std::to_string(bytes.size()) +
                         " bytes instead of " + std::to_string(sizeof record));
  }
  std::memcpy(&record, bytes.data(), sizeof record);
  if (record.magic != kMagic) return taco::invalid("no ticket of a listener's");
  if (record.version != kVersion) {
    return Status(Code::kVersionMismatch, "the ticket is of version " +
                                              std::to_string(record.version) + ", this is " +
                                              std::to_string(kVersion));
  }
  if (record.checksum != checksum_of(record)) {
    return taco::invalid("the ticket of a listener's is damaged");
  }
  Ticket ticket;
  ticket.secret = record.secret;
  for (const Place& place : record.places) {
    if (place.port == 0) continue;
    ticket.places.push_back(taco::harp::endpoint_from(place.address, place.port));
  }
  return ticket;
}

std::string seal_note(const Secret& secret, const Challenges& drawn, Writer writer,
                      std::string_view note) {
  std::string sealed(note.size() + kTagBytes, '\0');
  PacketKey(note_key(secret, drawn, writer), PacketKey::Use::kSeal)
      .seal(Header{}, {}, std::as_bytes(std::span(note)), {},
            reinterpret_cast<std::byte*>(sealed.data()));
  return sealed;
}

std::optional<std::string> open_note(const Secret& secret, const Challenges& drawn, Writer writer,
                                     std::string_view sealed) {
  if (sealed.size() < kTagBytes) return std::nullopt;
  std::vector<std::byte> packet(sizeof(Header) + sealed.size());
  const Header header{};
  std::memcpy(packet.data(), &header, sizeof header);
  std::memcpy(packet.data() + sizeof header, sealed.data(), sealed.size());
  PacketKey key(note_key(secret, drawn, writer), PacketKey::Use::kOpen);
  if (!key.open(packet, {})) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(packet.data()) + sizeof header,
                     sealed.size() - kTagBytes);
}

}  // namespace harp
