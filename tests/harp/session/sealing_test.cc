// How packets are sealed, byte by byte, and what keys do as time goes by.
#include "harp/session/sealing.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "harp/session/received_packets.h"
#include "harp/session/replay_window.h"
#include "support/sim_random.h"

namespace taco::harp {
namespace {

using Bytes = std::vector<std::byte>;

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

SealingOptions options_of(bool first, std::uint64_t packets_per_key = kPacketsPerKey) {
  SealingOptions options;
  options.key.fill(std::byte{0x55});
  wire::Nonce one, other;
  one.fill(std::byte{1});
  other.fill(std::byte{2});
  options.own_incarnation = first ? 10 : 20;
  options.peer_incarnation = first ? 20 : 10;
  options.own_nonce = first ? one : other;
  options.peer_nonce = first ? other : one;
  options.security = Security::kEncrypt;
  options.packets_per_key = packets_per_key;
  return options;
}

Bytes body_of(std::size_t bytes) {
  Bytes body(bytes);
  for (std::size_t i = 0; i < bytes; ++i) body[i] = static_cast<std::byte>(i * 7 + 3);
  return body;
}

// One counted packet of frames.
Bytes sealed(Sealing& sealing, const PacketNonce& nonce, const Bytes& body) {
  wire::Header header = wire::frames_header(wire::Type::kControl, {77, nonce.number, nonce.path},
                                            body.size(), nonce.uncounted ? wire::kUncounted : 0);
  Bytes packet(sizeof header + body.size() + wire::kTagBytes);
  sealing.seal(header, nonce, std::span(body).first(body.size() / 3),
               std::span(body).subspan(body.size() / 3), packet.data() + sizeof header);
  std::memcpy(packet.data(), &header, sizeof header);
  return packet;
}

bool opens(Sealing& sealing, Bytes packet, const PacketNonce& nonce, const Bytes& body) {
  Bytes scratch(packet.size());
  if (!sealing.open(packet, nonce, scratch)) return false;
  EXPECT_TRUE(std::equal(body.begin(), body.end(), packet.begin() + sizeof(wire::Header)));
  return true;
}

TEST(Hkdf, IsThatOfItsRfc) {
  const Bytes secret(22, std::byte{0x0b});
  const Digest extracted = hkdf_extract(from_hex("000102030405060708090a0b0c"), secret);
  const Bytes prk = from_hex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
  EXPECT_TRUE(std::equal(prk.begin(), prk.end(), extracted.begin()));
  const Digest expanded = hkdf_expand(extracted, from_hex("f0f1f2f3f4f5f6f7f8f9"));
  const Bytes okm = from_hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
  EXPECT_TRUE(std::equal(okm.begin(), okm.end(), expanded.begin()));
}

// The sealing that docs/wire.md describes, done by OpenSSL alone.
class ByTheBook {
 public:
  static Bytes hkdf(const Bytes& salt, const Bytes& secret, const Bytes& purpose, int mode) {
    Bytes out(32);
    std::size_t size = out.size();
    EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr);
    const auto* in = [](const Bytes& bytes) {
      return reinterpret_cast<const unsigned char*>(bytes.data());
    }(secret);
    EXPECT_EQ(EVP_PKEY_derive_init(context), 1);
    EXPECT_EQ(EVP_PKEY_CTX_set_hkdf_mode(context, mode), 1);
    EXPECT_EQ(EVP_PKEY_CTX_set_hkdf_md(context, EVP_sha256()), 1);
    EXPECT_EQ(EVP_PKEY_CTX_set1_hkdf_key(context, in, static_cast<int>(secret.size())), 1);
    if (mode == EVP_PKEY_HKDEF_MODE_EXTRACT_ONLY) {
      EXPECT_EQ(
          EVP_PKEY_CTX_set1_hkdf_salt(context, reinterpret_cast<const unsigned char*>(salt.data()),
                                      static_cast<int>(salt.size())),
          1);
    } else {
      EXPECT_EQ(EVP_PKEY_CTX_add1_hkdf_info(context,
                                            reinterpret_cast<const unsigned char*>(purpose.data()),
                                            static_cast<int>(purpose.size())),
                1);
    }
    EXPECT_EQ(EVP_PKEY_derive(context, reinterpret_cast<unsigned char*>(out.data()), &size), 1);
    EVP_PKEY_CTX_free(context);
    return out;
  }
  static Bytes text(const char* words, std::uint64_t number = 0, bool numbered = false) {
    Bytes bytes(std::strlen(words) + 1);
    std::memcpy(bytes.data(), words, bytes.size());
    if (numbered) {
      const auto raw = std::bit_cast<std::array<std::byte, 8>>(number);
      bytes.insert(bytes.end(), raw.begin(), raw.end());
    }
    return bytes;
  }
  static constexpr int kExpand = EVP_PKEY_HKDEF_MODE_EXPAND_ONLY;
  // The first secret of the process with incarnation 10.
  static Bytes first_secret() {
    Bytes salt(32, std::byte{1});
    std::fill(salt.begin() + 16, salt.end(), std::byte{2});
    const Bytes session =
        hkdf(salt, Bytes(32, std::byte{0x55}), {}, EVP_PKEY_HKDEF_MODE_EXTRACT_ONLY);
    return hkdf({}, session, text("taco harp seal", 10, true), kExpand);
  }
  // SipHash-1-3, as the library has it.
  static std::uint32_t mask(const Bytes& message) {
    const Bytes key = hkdf({}, first_secret(), text("taco harp header key"), kExpand);
    unsigned one = 1, three = 3;
    std::size_t size = 8;
    const std::array<OSSL_PARAM, 4> rounds{
        OSSL_PARAM_construct_uint("c-rounds", &one), OSSL_PARAM_construct_uint("d-rounds", &three),
        OSSL_PARAM_construct_size_t("size", &size), OSSL_PARAM_construct_end()};
    EVP_MAC* const mac = EVP_MAC_fetch(nullptr, "SIPHASH", nullptr);
    EVP_MAC_CTX* const context = EVP_MAC_CTX_new(mac);
    const auto raw = [](const Bytes& bytes) {
      return reinterpret_cast<const unsigned char*>(bytes.data());
    };
    std::array<unsigned char, 8> out{};
    EXPECT_EQ(EVP_MAC_init(context, raw(key), 16, rounds.data()), 1);
    EXPECT_EQ(EVP_MAC_update(context, raw(message), message.size()), 1);
    EXPECT_EQ(EVP_MAC_final(context, out.data(), &size, out.size()), 1);
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
    std::uint32_t mask = 0;
    std::memcpy(&mask, out.data(), sizeof mask);
    return mask;
  }
  // A packet of the same process after so many changes of keys.
  static Bytes packet(const wire::Header& header, const PacketNonce& nonce, const Bytes& body,
                      int changes) {
    Bytes secret = first_secret();
    for (int i = 0; i < changes; ++i) {
      secret = hkdf({}, secret, text("taco harp next key"), kExpand);
    }
    const Bytes key = hkdf({}, secret, text("taco harp packet key"), kExpand);
    Bytes iv(12);
    iv[1] = static_cast<std::byte>(nonce.attempt);
    iv[2] = static_cast<std::byte>(nonce.uncounted);
    iv[3] = static_cast<std::byte>(nonce.path);
    std::memcpy(iv.data() + 4, &nonce.number, 8);
    for (int i = 0; i < 12; ++i) iv[i] ^= key[16 + i];
    Bytes out(sizeof header + body.size() + 16);
    std::memcpy(out.data(), &header, sizeof header);
    const auto raw = [](auto* bytes) { return reinterpret_cast<unsigned char*>(bytes); };
    Bytes plain = body;
    int size = 0;
    EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
    EVP_EncryptInit_ex(context, EVP_aes_128_gcm(), nullptr, raw(const_cast<std::byte*>(key.data())),
                       raw(iv.data()));
    EVP_EncryptUpdate(context, nullptr, &size, raw(out.data()), sizeof header);
    EVP_EncryptUpdate(context, raw(out.data() + 32), &size, raw(plain.data()),
                      static_cast<int>(plain.size()));
    EVP_EncryptFinal_ex(context, raw(out.data() + 32 + size), &size);
    EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, 16, raw(out.data() + 32 + plain.size()));
    EVP_CIPHER_CTX_free(context);
    return out;
  }
};

TEST(Sealing, IsAsDocumented) {
  const Bytes body = body_of(100);
  Sealing sealing(options_of(true, 2));
  for (int change = 0; change < 3; ++change) {
    for (const bool uncounted : {false, true}) {
      const auto attempt = static_cast<std::uint8_t>(50 * change);
      const PacketNonce nonce{wire::PathId{5}, 0x1234'5678'9abc, uncounted, attempt};
      const Bytes packet = sealed(sealing, nonce, body);
      wire::Header header;
      std::memcpy(&header, packet.data(), sizeof header);
      EXPECT_EQ(header.sealed_with, change % 2 + 2 * attempt);
      EXPECT_EQ(header.flags, wire::kSealed | (uncounted ? wire::kUncounted : 0));
      EXPECT_EQ(packet, ByTheBook::packet(header, nonce, body, change));
    }
    sealing.begin_turn(kSecond + change);
    sealing.on_acknowledged(2 * kSecond);
  }
  EXPECT_EQ(sealing.rotations(), 3u);
}

// Short ones by the processor's own instructions, where it has them, longer ones by the library; in
// two pieces all by the library.
TEST(Sealing, IsTheSameAtEveryLengthAndInPieces) {
  Sealing sealing(options_of(true)), theirs(options_of(false));
  for (std::size_t size = 0; size < 640; ++size) {
    const Bytes body = body_of(size);
    const PacketNonce nonce{wire::PathId{3}, 1000 + size, size % 2 == 0};
    wire::Header header = wire::frames_header(wire::Type::kControl, {77, nonce.number, nonce.path},
                                              size, nonce.uncounted ? wire::kUncounted : 0);
    Bytes whole(sizeof header + size + wire::kTagBytes);
    sealing.seal(header, nonce, body, {}, whole.data() + sizeof header);
    std::memcpy(whole.data(), &header, sizeof header);
    ASSERT_EQ(whole, ByTheBook::packet(header, nonce, body, 0)) << size << " bytes";
    ASSERT_EQ(whole, sealed(sealing, nonce, body)) << size << " bytes";
    ASSERT_TRUE(opens(theirs, whole, nonce, body)) << size << " bytes";
  }
}

TEST(Sealing, MasksTheChecksumsOfSegmentsAsDocumented) {
  const Sealing sealing(options_of(true));
  const wire::PacketId id{1, 0x1234'5678'9abc, wire::PathId{5}};
  const Bytes body = body_of(100);
  for (const bool fragment : {false, true}) {
    const auto make = fragment ? wire::fragment_header : wire::data_header;
    wire::Header header = make(id, {7, 8}, 9, 100'000, wire::kOffered);
    wire::seal(header, body);
    Bytes message(16);
    std::memcpy(message.data(), &id.number, 8);
    std::memcpy(message.data() + 8, &header.extent, 8);
    message.resize(24);
    message[16] = std::byte{100};
    if (fragment) std::copy_n(body.begin(), 4, message.begin() + 20);
    const auto low = std::as_bytes(std::span(&header.slot_low, 1));
    message.insert(message.end(), low.begin(), low.end());
    for (const int byte : {int{header.version_and_type}, int{header.flags}, 5}) {
      message.push_back(static_cast<std::byte>(byte));
    }
    wire::Header masked = header;
    wire::seal(masked, body, {}, {&sealing.sent_headers(), id.number});
    EXPECT_EQ(masked.crc ^ header.crc, ByTheBook::mask(message));
    Bytes packet(sizeof masked);
    std::memcpy(packet.data(), &masked, sizeof masked);
    packet.insert(packet.end(), body.begin(), body.end());
    wire::Packet parsed;
    Sealing other(options_of(false));
    const auto is_right = [&](const HeaderKey& key, std::uint64_t expected) {
      return wire::parse(packet, parsed, true, {&key, expected}) != wire::Verdict::kBadChecksum;
    };
    EXPECT_TRUE(is_right(other.received_headers(), id.number - 1000));
    EXPECT_TRUE(is_right(other.received_headers(), id.number + 1000));
    EXPECT_FALSE(is_right(other.received_headers(), id.number + (std::uint64_t{1} << 32)))
        << "a recording is good again";
    EXPECT_FALSE(is_right(other.sent_headers(), id.number));
    EXPECT_EQ(wire::parse(packet, parsed), wire::Verdict::kBadChecksum);
  }
}

TEST(Sealing, NothingOpensThatWasTouched) {
  Sealing ours(options_of(true)), theirs(options_of(false));
  const PacketNonce nonce{wire::kFirstPath, 9, false};
  for (const std::size_t bytes : {0ul, 1ul, 37ul, 600ul}) {  // the last: the library
    const Bytes body = body_of(bytes), packet = sealed(ours, nonce, body);
    for (std::size_t bit = 0; bit < 8 * packet.size(); ++bit) {
      Bytes touched = packet;
      touched[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_FALSE(opens(theirs, touched, nonce, body)) << "bit " << bit;
    }
    EXPECT_FALSE(opens(theirs, Bytes(packet.begin(), packet.end() - 1), nonce, body));
    EXPECT_TRUE(opens(theirs, packet, nonce, body));
  }
  EXPECT_FALSE(opens(theirs, Bytes(47), nonce, {}));
}

TEST(Sealing, TheNumberInFullThePathAndTheSequenceCount) {
  Sealing ours(options_of(true)), theirs(options_of(false));
  const Bytes body = body_of(20);
  const PacketNonce nonce{wire::PathId{2}, 0x1'0000'0009, false};
  const Bytes packet = sealed(ours, nonce, body);
  EXPECT_FALSE(opens(theirs, packet, {wire::PathId{2}, 9, false}, body));
  EXPECT_FALSE(opens(theirs, packet, {wire::PathId{1}, nonce.number, false}, body));
  EXPECT_FALSE(opens(theirs, packet, {wire::PathId{2}, nonce.number, true}, body));
  EXPECT_TRUE(opens(theirs, packet, nonce, body));
}

TEST(Sealing, EachDirectionAndEachSessionHasItsOwnKeys) {
  Sealing ours(options_of(true)), theirs(options_of(false));
  const Bytes body = body_of(20);
  const PacketNonce nonce{wire::kFirstPath, 1, false};
  const Bytes packet = sealed(ours, nonce, body);
  EXPECT_FALSE(opens(ours, packet, nonce, body)) << "sent back to its sender";
  for (const int what : {0, 1, 2}) {
    SealingOptions other = options_of(false);
    (what == 0   ? other.key[31]
     : what == 1 ? other.own_nonce[0]
                 : other.peer_nonce[15]) ^= std::byte{1};
    Sealing stranger(other);
    EXPECT_FALSE(opens(stranger, packet, nonce, body)) << what;
  }
  EXPECT_TRUE(opens(theirs, packet, nonce, body));
}

TEST(Sealing, KeysChangeAndWhatIsUnderWayStillOpens) {
  constexpr std::uint64_t kEach = 4;
  Sealing ours(options_of(true, kEach)), theirs(options_of(false));
  const Bytes body = body_of(64);
  std::vector<Bytes> packets;
  const auto nonce_of = [](std::size_t i) { return PacketNonce{wire::kFirstPath, i + 1, false}; };
  for (Time now = 1; now <= 6; ++now) {
    for (std::uint64_t i = 0; i < kEach; ++i) {
      packets.push_back(sealed(ours, nonce_of(packets.size()), body));
    }
    EXPECT_FALSE(ours.begin_turn(10 * now));
    ours.on_acknowledged(10 * now + 1);
  }
  EXPECT_EQ(ours.rotations(), 6u);
  const auto open = [&](std::size_t i) { return opens(theirs, packets[i], nonce_of(i), body); };
  EXPECT_TRUE(open(0));
  EXPECT_TRUE(open(kEach + 1)) << "the next key";
  EXPECT_TRUE(open(1)) << "the one before";
  EXPECT_TRUE(open(kEach)) << "the newest again";
  EXPECT_TRUE(open(2 * kEach));
  EXPECT_FALSE(open(2)) << "two before: it counts as lost";
  EXPECT_TRUE(open(2 * kEach + 1)) << "an attempt in vain costs nothing";
  theirs.trim();
  EXPECT_FALSE(open(kEach + 2));
  EXPECT_FALSE(open(5 * kEach)) << "two ahead, which no sender is";
  for (std::size_t i = 3 * kEach; i < packets.size(); ++i) EXPECT_TRUE(open(i)) << i;
}

TEST(Sealing, ForgedPacketsChangeNoKey) {
  Sealing ours(options_of(true, 1)), theirs(options_of(false));
  const Bytes body = body_of(64);
  const PacketNonce first{wire::kFirstPath, 1, false}, second{wire::kFirstPath, 2, false};
  const Bytes packet = sealed(ours, first, body);
  Bytes forged = packet;
  forged[3] ^= std::byte{1};
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(opens(theirs, forged, first, body));
  EXPECT_TRUE(opens(theirs, packet, first, body));
  ours.begin_turn(1);
  const Bytes next = sealed(ours, second, body);
  EXPECT_TRUE(opens(theirs, next, second, body));
  Bytes damaged = next;
  damaged[3] ^= std::byte{1};
  EXPECT_FALSE(opens(theirs, damaged, second, body));
  EXPECT_TRUE(opens(theirs, packet, first, body));
}

TEST(Sealing, NoKeyIsLeftBehindBeforeThePeerHasIt) {
  Sealing ours(options_of(true, 2));
  const Bytes body = body_of(8);
  std::uint64_t number = 0;
  const auto send = [&](int packets) {
    for (int i = 0; i < packets; ++i) sealed(ours, {wire::kFirstPath, ++number, false}, body);
  };
  send(1);
  EXPECT_FALSE(ours.begin_turn(1));
  EXPECT_EQ(ours.rotations(), 0u) << "not yet";
  send(1);
  EXPECT_FALSE(ours.begin_turn(2)) << "the first key is known from the handshake";
  EXPECT_EQ(ours.rotations(), 1u);
  ours.on_acknowledged(2);  // sent in the turn in which the key was taken, or before
  send(2);
  EXPECT_TRUE(ours.begin_turn(3)) << "asks for a sign";
  EXPECT_FALSE(ours.begin_turn(4)) << "once";
  send(100);
  EXPECT_FALSE(ours.begin_turn(5));
  EXPECT_EQ(ours.rotations(), 1u);
  ours.on_acknowledged(3);
  EXPECT_FALSE(ours.begin_turn(6));
  EXPECT_EQ(ours.rotations(), 2u);
}

TEST(SecurityLevels, HaveNames) {
  for (const Security level : {Security::kNone, Security::kAuth, Security::kEncrypt}) {
    EXPECT_EQ(security_named(name_of(level)), level);
  }
  EXPECT_EQ(security_named("Auth"), std::nullopt);
  EXPECT_EQ(security_named(""), std::nullopt);
  EXPECT_STREQ(name_of(static_cast<Security>(99)), "unknown");
}

TEST(ReplayWindow, TakesEachNumberOnceUnlessItIsOld) {
  ReplayWindow window;
  EXPECT_TRUE(window.take(1));
  EXPECT_FALSE(window.take(1));
  EXPECT_TRUE(window.take(3));
  EXPECT_TRUE(window.take(2));
  EXPECT_FALSE(window.take(2));
  EXPECT_TRUE(window.take(66));
  EXPECT_FALSE(window.take(2)) << "too old to tell";
  EXPECT_FALSE(window.take(3)) << "it has come";
  EXPECT_TRUE(window.take(4));
  EXPECT_TRUE(window.take(1'000'000'000'000));
  EXPECT_FALSE(window.take(66));
  EXPECT_EQ(window.largest(), 1'000'000'000'000u);
}

// A number that may be asked about is answered as one that is added then.
TEST(ReceivedPackets, KnowWhatTheyHaveAndWhatIsTooOld) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimRandom random(seed);
    ReceivedPackets received;
    std::uint64_t top = 1;
    std::size_t fresh = 0, copies = 0;
    for (int i = 0; i < 5'000; ++i) {
      top += random.below(4);
      const std::uint64_t back = random.below(300);
      const std::uint64_t number = top > back ? top - back : 1;
      const bool has = received.has(number);
      ++(has ? copies : fresh);
      ASSERT_EQ(received.add(number, 1), !has) << "seed " << seed << " number " << number;
      ASSERT_TRUE(received.has(number));
    }
    EXPECT_GT(fresh, 500u);
    EXPECT_GT(copies, 500u);
  }
}

}  // namespace
}  // namespace taco::harp
