// The MAC addresses of the hosts on one network, as ARP and neighbour discovery tell them, for a
// driver that has no kernel to ask. It knows no device and no clock: whoever owns it asks what is
// to be asked, and tells it what was heard.
//
//   an entry is     since                                      then
//   asked about     somebody wanted to send there              known once it is answered
//   known           an answer, or a question of its own        asked about again after kFresh, and
//                                                              used meanwhile; if kTries in a row
//                                                              bring no answer, as if never known
//
// Nobody is asked about to whom nothing is sent. Owner thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "harp/drivers/frames/ethernet.h"
#include "harp/nic.h"

namespace taco::harp {

class Neighbours {
 public:
  static constexpr std::size_t kMax = 4096;
  static constexpr Duration kFresh = 30 * kSecond;
  static constexpr Duration kFirstRetry = 50 * kMillisecond;
  static constexpr Duration kLastRetry = kSecond;
  static constexpr int kTries = 4;

  // Somebody wants to send there. None: it is not known (yet).
  std::optional<MacAddress> look_up(const Endpoint& host, Time now);
  // The hosts to ask about now.
  std::vector<Endpoint> take_questions(Time now);
  // A host has answered. Those that nobody has asked about are not kept: anybody can name them.
  void on_answer(const Endpoint& host, const MacAddress& mac, Time now);
  // A host has asked about us, so that it is about to send.
  void on_question_from(const Endpoint& host, const MacAddress& mac, Time now);
  // Grows whenever a look-up may say something else than before.
  std::uint64_t changes() const { return changes_; }
  std::size_t size() const { return entries_.size(); }

 private:
  using Key = std::array<std::byte, 16>;
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  struct Entry {
    Endpoint host;
    std::optional<MacAddress> mac;
    Time used_at = 0;
    Time ask_at = kNever;  // kNever: not until somebody wants to send there
    Duration retry = kFirstRetry;
    Time fresh_until = 0;
    int unanswered = 0;
  };

  Entry& entry_of(const Endpoint& host, Time now);
  void drop_oldest();
  void confirm(Entry& entry, const MacAddress& mac, Time now);

  std::unordered_map<Key, Entry, Hash> entries_;
  std::uint64_t changes_ = 0;
  Time next_question_ = kNever;  // no entry is to be asked about sooner
};

}  // namespace taco::harp
