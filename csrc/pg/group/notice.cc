#include "pg/group/notice.h"

#include <algorithm>
#include <cstring>

#include "harp/service.h"
#include "harp/transport.h"

namespace taco::pg {
namespace {

constexpr std::uint8_t kFormat = harp::notice_byte(harp::Service::kCollectives, 2);
constexpr std::uint8_t kKnowsGroup = 1, kDone = 2;  // flags
constexpr std::size_t kMaxAddress = 128;

struct Fixed {
  std::uint8_t format, kind, code, flags;
  std::uint16_t address_bytes, text_bytes;
  std::uint64_t group, number, subject, accuser, sequence, signature, asked, asked_signature;
  double last_heard_s;
};
static_assert(sizeof(Fixed) == 80);
constexpr std::size_t kMaxText = harp::kMaxNoticeBytes - sizeof(Fixed) - kMaxAddress;

}  // namespace

std::vector<std::byte> encode(const Notice& notice) {
  Fixed fixed{};
  fixed.format = kFormat;
  fixed.kind = static_cast<std::uint8_t>(notice.kind);
  fixed.code = static_cast<std::uint8_t>(notice.code);
  fixed.flags = (notice.knows_group ? kKnowsGroup : 0) | (notice.done ? kDone : 0);
  fixed.address_bytes = static_cast<std::uint16_t>(std::min(notice.address.size(), kMaxAddress));
  fixed.text_bytes = static_cast<std::uint16_t>(std::min(notice.text.size(), kMaxText));
  fixed.group = notice.group;
  fixed.number = notice.number;
  fixed.subject = notice.subject;
  fixed.accuser = notice.accuser;
  fixed.sequence = notice.sequence;
  fixed.signature = notice.signature;
  fixed.asked = notice.asked;
  fixed.asked_signature = notice.asked_signature;
  fixed.last_heard_s = notice.last_heard_s;
  std::vector<std::byte> bytes(sizeof fixed + fixed.address_bytes + fixed.text_bytes);
  std::memcpy(bytes.data(), &fixed, sizeof fixed);
  std::memcpy(bytes.data() + sizeof fixed, notice.address.data(), fixed.address_bytes);
  std::memcpy(bytes.data() + sizeof fixed + fixed.address_bytes, notice.text.data(),
              fixed.text_bytes);
  return bytes;
}

std::optional<Notice> decode(std::span<const std::byte> bytes) {
  Fixed fixed;
  if (bytes.size() < sizeof fixed) return std::nullopt;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.format != kFormat) return std::nullopt;
  if (fixed.kind < 1 || fixed.kind > static_cast<int>(NoticeKind::kRollRefused))
    return std::nullopt;
  if (fixed.code > static_cast<int>(Code::kInternal)) return std::nullopt;
  if (bytes.size() != sizeof fixed + fixed.address_bytes + fixed.text_bytes) return std::nullopt;
  Notice notice;
  notice.kind = static_cast<NoticeKind>(fixed.kind);
  notice.code = static_cast<Code>(fixed.code);
  notice.knows_group = (fixed.flags & kKnowsGroup) != 0;
  notice.done = (fixed.flags & kDone) != 0;
  notice.group = fixed.group;
  notice.number = fixed.number;
  notice.subject = fixed.subject;
  notice.accuser = fixed.accuser;
  notice.sequence = fixed.sequence;
  notice.signature = fixed.signature;
  notice.asked = fixed.asked;
  notice.asked_signature = fixed.asked_signature;
  notice.last_heard_s = fixed.last_heard_s;
  const auto* text = reinterpret_cast<const char*>(bytes.data() + sizeof fixed);
  notice.address.assign(text, fixed.address_bytes);
  notice.text.assign(text + fixed.address_bytes, fixed.text_bytes);
  return notice;
}

}  // namespace taco::pg
