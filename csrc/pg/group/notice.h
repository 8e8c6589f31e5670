// Notices that the members of a group send each other beside the data: small, reliable, rare. One
// record a notice, bounds-checked when read, since it comes from outside the process. Pure; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace taco::pg {

enum class NoticeKind : std::uint8_t {
  kPeerLost = 1,     // `subject` (an incarnation) is lost, says `accuser`
  kGroupFailed,      // abort, timeout or mismatch: `code` and `text`
  kArrivalQuery,     // what have you started, and what as `sequence`? `number` names the question
  kArrivalReport,    // `number` and `asked` as asked, `sequence` newest started, `signature` of it,
                     // `asked_signature` of the asked one or 0, `done` with it;
                     // of a group that is destroyed: `done`, and `sequence` its newest
  kBarrierArrived,   // monitored barrier `number`
  kBarrierReleased,  // monitored barrier `number`; `code` and `text` when it failed
  kGroupLeft,        // the sender has left the group, with everything it sent acknowledged;
                     // `sequence` is its newest collective
  // A roll call; of all, `number` is the digest of the sender's members, `sequence` their count.
  kRollCall,
  kRollAnswer,
  kRollRelease,  // all have come
  kRollRefused,  // the receiver is no member to the sender
};

struct Notice {
  NoticeKind kind = NoticeKind::kGroupFailed;
  Code code = Code::kOk;
  bool knows_group = true;  // kArrivalReport: false when the group is destroyed or not made yet
  bool done = false;        // kArrivalReport: the asked one has ended, every send acknowledged
  std::uint64_t group = 0;
  std::uint64_t number = 0;
  std::uint64_t subject = 0;
  std::uint64_t accuser = 0;
  std::uint64_t sequence = 0;
  std::uint64_t signature = 0;
  std::uint64_t asked = 0;  // kArrivalReport: the sequence number of the question
  std::uint64_t asked_signature = 0;
  double last_heard_s = -1;
  std::string address;
  std::string text;
};

// The beginnings of an answer to a kArrivalQuery.
inline Notice answer_to(const Notice& query) {
  Notice answer;
  answer.kind = NoticeKind::kArrivalReport;
  answer.group = query.group;
  answer.number = query.number;
  answer.asked = query.sequence;
  return answer;
}

// Never longer than harp::kMaxNoticeBytes: texts are cut.
std::vector<std::byte> encode(const Notice& notice);
std::optional<Notice> decode(std::span<const std::byte> bytes);

}  // namespace taco::pg
