// The encryption that keeps the packets of a session to its two processes: AES-128-GCM, under keys
// that both derive from their pair key and the nonces of this session's hellos (docs/wire.md).
//
// Each direction has keys of its own, one after the other: a sender takes the next one after so
// many packets, and says by one bit in the header which of two it used. Before it may go on to the
// one after that, the peer must have acknowledged a packet under the newest: so a receiver never
// needs more than the key it has, the one before and the next.
//
// A nonce is used once under a key. Packet numbers are nearly that: one that the Nic has refused is
// taken again. What the Nic says of such a packet is no proof that nobody has seen any of it, so
// the next of that number is another attempt, which is part of the nonce and of the header.
//
// Short packets are sealed by the processor's own instructions where it has them, all others by
// libcrypto, which has to be asked five times for each.
//
// One per session; owner thread only. Allocates when a key is made, never for a packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "harp/session/header_key.h"
#include "harp/session/proof.h"
#include "harp/session/wire.h"
#include "kernels/short_gcm.h"

struct evp_cipher_ctx_st;  // OpenSSL's

namespace taco::harp {

// A sender seals so many packets under one key, and then takes the next. Far below what AES-GCM
// allows (2^23 packets of full size, by RFC 9001's reckoning).
inline constexpr std::uint64_t kPacketsPerKey = std::uint64_t{1} << 22;

// As hellos say it.
enum class Security : std::uint8_t {
  kNone = 0,     // checksums
  kAuth = 1,     // control packets and eager messages are sealed, data have checksums
  kEncrypt = 2,  // everything is sealed but the handshake, which proves itself
};
const char* name_of(Security security);
std::optional<Security> security_named(std::string_view name);

constexpr bool seals(Security security, wire::Type type) {
  switch (type) {
    case wire::Type::kControl:
    case wire::Type::kEager:
      return security != Security::kNone;
    case wire::Type::kData:
    case wire::Type::kFragment:
      return security == Security::kEncrypt;
    case wire::Type::kHello:
    case wire::Type::kReset:
      return false;
  }
  return false;
}
// The bytes that a tag takes of such a packet.
constexpr std::size_t tag_bytes(Security security, wire::Type type) {
  return seals(security, type) ? wire::kTagBytes : 0;
}

// Which packet of a session this is; never the same twice.
struct PacketNonce {
  wire::PathId path = wire::kFirstPath;
  std::uint64_t number = 0;  // in full
  bool uncounted = false;    // numbered in the other sequence
  std::uint8_t attempt = 0;  // of those of this number
};

// One key in one direction, ready for use.
class PacketKey {
 public:
  enum class Use : std::uint8_t { kSeal, kOpen };
  PacketKey(const Digest& secret, Use use);

  // Writes `first` and `second`, encrypted, and the tag to `out`. The header is final.
  void seal(const wire::Header& header, const PacketNonce& nonce, std::span<const std::byte> first,
            std::span<const std::byte> second, std::byte* out);
  // Decrypts all of the packet but header and tag, in place. False: it is not what was sealed, and
  // its bytes are of no use.
  bool open(std::span<std::byte> packet, const PacketNonce& nonce);

 private:
  static constexpr std::size_t kNonceBytes = kernels::ShortGcm::kNonceBytes;
  using NonceBytes = std::array<std::byte, kNonceBytes>;
  NonceBytes bytes_of(const PacketNonce& nonce) const;
  bool is_short(std::size_t bytes) const {
    return short_.has_value() && bytes <= kernels::ShortGcm::kMostBytes;
  }
  void begin(const NonceBytes& nonce, std::span<const std::byte> header);

  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  std::optional<kernels::ShortGcm> short_;  // where the processor has it: the same key
  NonceBytes mask_;                         // of nonces, so that they differ from key to key
};

// The first use of libcrypto's algorithms takes milliseconds. Once this has been called, the first
// hello and the first session of the process do not wait for it.
void prepare_sealing(Security security);

struct SealingOptions {
  PairKey key{};
  std::uint64_t own_incarnation = 0, peer_incarnation = 0;
  wire::Nonce own_nonce{}, peer_nonce{};  // of the hellos
  Security security = Security::kNone;
  std::uint64_t packets_per_key = 0;
};

class Sealing {
 public:
  explicit Sealing(const SealingOptions& options);

  Security security() const { return security_; }

  // Marks the header, and writes the body, sealed, to `out`: kTagBytes more than it was.
  void seal(wire::Header& header, const PacketNonce& nonce, std::span<const std::byte> first,
            std::span<const std::byte> second, std::byte* out);
  // A turn to send begins: the next key is taken if it is time for that. True: it would be, but
  // nothing under the newest has been acknowledged yet, so something should be asked of the peer;
  // said once for each key.
  bool begin_turn(Time now);
  // A sealed packet that left at `sent` has arrived.
  void on_acknowledged(Time sent) { confirmed_ |= sent > newest_since_; }

  // True: `packet` is as its sender sealed it, and its body decrypted. `scratch` is at least as
  // long as the packet.
  bool open(std::span<std::byte> packet, const PacketNonce& nonce, std::span<std::byte> scratch);

  // The headers of segments that are not sealed: ours, and the peer's.
  const HeaderKey& sent_headers() const { return sent_headers_; }
  const HeaderKey& received_headers() const { return received_headers_; }

  // Gives back the key that only what is long under way may need.
  void trim() { before_.reset(); }
  std::uint64_t rotations() const { return rotations_; }  // of what is sent
  std::size_t memory_bytes() const;
  void prefetch_sender() const { __builtin_prefetch(sender_.get()); }

 private:
  Sealing(const SealingOptions& options, const Digest& session);
  bool open_by_another(std::span<std::byte> packet, const PacketNonce& nonce,
                       std::span<std::byte> scratch);
  void advance();

  const Security security_;
  const std::uint64_t packets_per_key_;

  // Sending.
  Digest sending_;
  HeaderKey sent_headers_;  // the same for all of a session
  std::unique_ptr<PacketKey> sender_;
  std::uint64_t sealed_ = 0;     // under this key
  std::uint64_t rotations_ = 0;  // the lowest bit is the phase
  bool confirmed_ = true;        // the peer has this key: the first it has from the handshake
  bool asked_ = false;           // for a sign that it has
  Time newest_since_ = 0;

  // Receiving.
  Digest receiving_;
  HeaderKey received_headers_;
  std::unique_ptr<PacketKey> receiver_, before_, next_;  // the latter two only when needed
  bool phase_ = false;                                   // of receiver_
};

}  // namespace taco::harp
