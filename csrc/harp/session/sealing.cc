#include "harp/session/sealing.h"

#include <openssl/err.h>
#include <openssl/evp.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/fork.h"
#include "base/log.h"

namespace taco::harp {
namespace {

constexpr char kSession[] = "taco harp seal", kNextKey[] = "taco harp next key",
               kPacketKey[] = "taco harp packet key", kHeaderKey[] = "taco harp header key";
constexpr std::size_t kKeyBytes = 16;

// The memory of an OpenSSL context with its cipher's state; OpenSSL does not tell.
constexpr std::size_t kContextBytes = 1024;

// Without AES-GCM, or without memory for it, nothing may leave that was to be sealed.
void require(bool done) {
  if (done) return;
  TACO_LOG_ERROR("harp", "libcrypto cannot compute AES-128-GCM");
  abort();
}

const unsigned char* octets_of(std::span<const std::byte> data) {
  return reinterpret_cast<const unsigned char*>(data.data());
}

Digest next_secret(const Digest& secret) {
  return hkdf_expand(secret, std::as_bytes(std::span(kNextKey)));
}

HeaderKey header_key(const Digest& secret) {
  const Digest material = hkdf_expand(secret, std::as_bytes(std::span(kHeaderKey)));
  return HeaderKey(std::as_bytes(std::span(material)).first<HeaderKey::kBytes>());
}

// The secret that one side's keys come from.
Digest secret_of(const Digest& session, std::uint64_t sender) {
  std::array<std::byte, sizeof kSession + sizeof sender> purpose;
  std::memcpy(purpose.data(), kSession, sizeof kSession);
  std::memcpy(purpose.data() + sizeof kSession, &sender, sizeof sender);
  return hkdf_expand(session, purpose);
}

// The same for both sides.
Digest session_secret(const SealingOptions& options) {
  const bool first = options.own_incarnation < options.peer_incarnation;
  std::array<wire::Nonce, 2> nonces{options.own_nonce, options.peer_nonce};
  if (!first) std::swap(nonces[0], nonces[1]);
  return hkdf_extract(std::as_bytes(std::span(nonces)), options.key);
}

}  // namespace

const char* name_of(Security security) {
  switch (security) {
    case Security::kNone:
      return "none";
    case Security::kAuth:
      return "auth";
    case Security::kEncrypt:
      return "encrypt";
  }
  return "unknown";
}

std::optional<Security> security_named(std::string_view name) {
  for (const Security security : {Security::kNone, Security::kAuth, Security::kEncrypt}) {
    if (name == name_of(security)) return security;
  }
  return std::nullopt;
}

void PacketKey::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

PacketKey::PacketKey(const Digest& secret, Use use) : context_(EVP_CIPHER_CTX_new()) {
  const Digest material = hkdf_expand(secret, std::as_bytes(std::span(kPacketKey)));
  static_assert(kKeyBytes + kNonceBytes <= sizeof material);
  std::memcpy(mask_.data(), material.data() + kKeyBytes, mask_.size());
  const NoForkMeanwhile in_library;  // which looks for the cipher
  require(context_ != nullptr &&
          EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, octets_of(material),
                            nullptr, use == Use::kSeal ? 1 : 0) == 1);
  leave_crypto_library(in_library);
  if (kernels::ShortGcm::is_supported()) {
    short_.emplace(std::as_bytes(std::span(material)).first<kKeyBytes>());
  }
}

void prepare_sealing(Security security) {
  // Twice does no harm, and nobody waits: a child may be forked in the middle of it.
  static std::atomic<bool> prepared = false;
  if (prepared.load(std::memory_order_relaxed)) return;
  const Digest secret = hkdf_expand(Digest{}, {});  // hellos take this, whatever is sealed
  if (security != Security::kNone) {
    const wire::Header header{};
    std::array<std::byte, sizeof header + wire::kTagBytes> packet{};
    PacketKey(secret, PacketKey::Use::kSeal)
        .seal(header, {}, {}, {}, packet.data() + sizeof header);
    require(PacketKey(secret, PacketKey::Use::kOpen).open(packet, {}));
  }
  prepared.store(true, std::memory_order_relaxed);
}

PacketKey::NonceBytes PacketKey::bytes_of(const PacketNonce& nonce) const {
  NonceBytes bytes{};
  bytes[1] = static_cast<std::byte>(nonce.attempt);
  bytes[2] = static_cast<std::byte>(nonce.uncounted);
  bytes[3] = static_cast<std::byte>(nonce.path);
  std::memcpy(bytes.data() + 4, &nonce.number, sizeof nonce.number);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] ^= mask_[i];
  return bytes;
}

void PacketKey::begin(const NonceBytes& nonce, std::span<const std::byte> header) {
  int bytes = 0;
  require(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, octets_of(nonce), -1) == 1 &&
          EVP_CipherUpdate(context_.get(), nullptr, &bytes, octets_of(header),
                           static_cast<int>(header.size())) == 1);
}

void PacketKey::seal(const wire::Header& header, const PacketNonce& nonce,
                     std::span<const std::byte> first, std::span<const std::byte> second,
                     std::byte* out) {
  const NonceBytes nonce_bytes = bytes_of(nonce);
  const std::span<const std::byte> front = std::as_bytes(std::span(&header, 1));
  if (second.empty() && is_short(first.size())) {
    const kernels::ShortGcm::Tag tag(out + first.size(), wire::kTagBytes);
    return short_->seal(nonce_bytes, front, first, out, tag);
  }
  begin(nonce_bytes, front);
  auto* to = reinterpret_cast<unsigned char*>(out);
  for (const std::span<const std::byte> piece : {first, second}) {
    if (piece.empty()) continue;
    int bytes = 0;
    require(EVP_CipherUpdate(context_.get(), to, &bytes, octets_of(piece),
                             static_cast<int>(piece.size())) == 1);
    to += bytes;
  }
  int bytes = 0;
  require(EVP_CipherFinal_ex(context_.get(), to, &bytes) == 1 &&
          EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, wire::kTagBytes, to) == 1);
}

bool PacketKey::open(std::span<std::byte> packet, const PacketNonce& nonce) {
  if (packet.size() < sizeof(wire::Header) + wire::kTagBytes) return false;
  const NonceBytes nonce_bytes = bytes_of(nonce);
  const std::span<std::byte> front = packet.first(sizeof(wire::Header));
  const std::span<std::byte> body =
      packet.subspan(sizeof(wire::Header), packet.size() - sizeof(wire::Header) - wire::kTagBytes);
  if (is_short(body.size())) {
    return short_->open(nonce_bytes, front, body, packet.last<wire::kTagBytes>());
  }
  begin(nonce_bytes, front);
  auto* data = reinterpret_cast<unsigned char*>(body.data());
  int bytes = 0;
  if (!body.empty()) {
    require(EVP_CipherUpdate(context_.get(), data, &bytes, data, static_cast<int>(body.size())) ==
            1);
  }
  require(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, wire::kTagBytes,
                              data + body.size()) == 1);
  if (EVP_CipherFinal_ex(context_.get(), data + bytes, &bytes) == 1) return true;
  ERR_clear_error();  // nobody else on this thread is to take it for theirs
  return false;
}

Sealing::Sealing(const SealingOptions& options) : Sealing(options, session_secret(options)) {}

Sealing::Sealing(const SealingOptions& options, const Digest& session)
    : security_(options.security),
      packets_per_key_(options.packets_per_key),
      sending_(secret_of(session, options.own_incarnation)),
      sent_headers_(header_key(sending_)),
      receiving_(secret_of(session, options.peer_incarnation)),
      received_headers_(header_key(receiving_)) {
  sender_ = std::make_unique<PacketKey>(sending_, PacketKey::Use::kSeal);
  receiver_ = std::make_unique<PacketKey>(receiving_, PacketKey::Use::kOpen);
}

void Sealing::seal(wire::Header& header, const PacketNonce& nonce, std::span<const std::byte> first,
                   std::span<const std::byte> second, std::byte* out) {
  wire::mark_sealed(header, static_cast<std::uint8_t>(rotations_ & 1), nonce.attempt);
  sender_->seal(header, nonce, first, second, out);
  ++sealed_;
}

bool Sealing::begin_turn(Time now) {
  if (sealed_ < packets_per_key_) return false;
  if (!confirmed_) return !std::exchange(asked_, true);
  sending_ = next_secret(sending_);
  sender_ = std::make_unique<PacketKey>(sending_, PacketKey::Use::kSeal);
  ++rotations_;
  sealed_ = 0;
  confirmed_ = asked_ = false;
  newest_since_ = now;
  return false;
}

bool Sealing::open(std::span<std::byte> packet, const PacketNonce& nonce,
                   std::span<std::byte> scratch) {
  if (wire::key_phase(packet) != static_cast<std::uint8_t>(phase_)) {
    return open_by_another(packet, nonce, scratch);
  }
  return receiver_->open(packet, nonce);
}

// Sealed before the peer took its newest key, or by the next: its phase is the same, and a packet
// that was opened by the wrong key is lost, so the first attempt is made on a copy.
bool Sealing::open_by_another(std::span<std::byte> packet, const PacketNonce& nonce,
                              std::span<std::byte> scratch) {
  if (before_ != nullptr) {
    TACO_ASSERT(scratch.size() >= packet.size());
    const std::span<std::byte> copy = scratch.first(packet.size());
    std::memcpy(copy.data(), packet.data(), packet.size());
    if (before_->open(copy, nonce)) {
      std::memcpy(packet.data(), copy.data(), packet.size());
      return true;
    }
  }
  if (next_ == nullptr) {
    next_ = std::make_unique<PacketKey>(next_secret(receiving_), PacketKey::Use::kOpen);
  }
  if (!next_->open(packet, nonce)) return false;
  advance();
  return true;
}

void Sealing::advance() {
  receiving_ = next_secret(receiving_);
  before_ = std::exchange(receiver_, std::move(next_));
  phase_ = !phase_;
}

std::size_t Sealing::memory_bytes() const {
  std::size_t keys = 2;
  if (before_ != nullptr) ++keys;
  if (next_ != nullptr) ++keys;
  return sizeof(Sealing) + keys * (sizeof(PacketKey) + kContextBytes);
}

}  // namespace taco::harp
