#include "harp/drivers/frames/neighbours.h"

#include <algorithm>
#include <cstring>

#include "harp/address.h"

namespace taco::harp {

// The last bytes are those in which neighbours differ. Who chooses addresses that collide has to be
// one.
std::size_t Neighbours::Hash::operator()(const Key& key) const {
  std::uint64_t last;
  std::memcpy(&last, key.data() + key.size() - sizeof last, sizeof last);
  return static_cast<std::size_t>((last * 0x9e37'79b9'7f4a'7c15ull) >> 32);
}

Neighbours::Entry& Neighbours::entry_of(const Endpoint& host, Time now) {
  const Key key = mapped_address(host);
  const auto found = entries_.find(key);
  if (found != entries_.end()) return found->second;
  if (entries_.size() == kMax) drop_oldest();
  Entry& made = entries_[key];
  made.host = host;
  set_port(made.host, 0);
  made.used_at = now;
  return made;
}

void Neighbours::drop_oldest() {
  const auto oldest =
      std::ranges::min_element(entries_, {}, [](const auto& each) { return each.second.used_at; });
  entries_.erase(oldest);
  ++changes_;
}

std::optional<MacAddress> Neighbours::look_up(const Endpoint& host, Time now) {
  Entry& entry = entry_of(host, now);
  entry.used_at = now;
  const bool is_fresh = entry.mac && now < entry.fresh_until;
  if (!is_fresh && entry.ask_at == kNever) entry.ask_at = now;
  next_question_ = std::min(next_question_, entry.ask_at);
  return entry.mac;
}

// A question that brought no answer is repeated only where something was to be sent since.
std::vector<Endpoint> Neighbours::take_questions(Time now) {
  std::vector<Endpoint> questions;
  if (now < next_question_) return questions;
  next_question_ = kNever;
  for (auto& [key, entry] : entries_) {
    if (entry.ask_at <= now) {
      const bool is_wanted = entry.unanswered == 0 || entry.used_at > now - entry.retry;
      entry.ask_at = is_wanted ? now + entry.retry : kNever;
      if (is_wanted) {
        entry.retry = std::min(2 * entry.retry, kLastRetry);
        questions.push_back(entry.host);
        if (++entry.unanswered > kTries && entry.mac) {
          entry.mac.reset();
          ++changes_;
        }
      } else {
        entry.retry = kFirstRetry;
      }
    }
    next_question_ = std::min(next_question_, entry.ask_at);
  }
  return questions;
}

void Neighbours::confirm(Entry& entry, const MacAddress& mac, Time now) {
  if (entry.mac != mac) ++changes_;
  entry.mac = mac;
  entry.ask_at = kNever;
  entry.retry = kFirstRetry;
  entry.unanswered = 0;
  entry.fresh_until = now + kFresh;
}

void Neighbours::on_answer(const Endpoint& host, const MacAddress& mac, Time now) {
  const auto found = entries_.find(mapped_address(host));
  if (found != entries_.end()) confirm(found->second, mac, now);
}

void Neighbours::on_question_from(const Endpoint& host, const MacAddress& mac, Time now) {
  confirm(entry_of(host, now), mac, now);
}

}  // namespace taco::harp
