#include "harp/session/path_ends.h"

#include "harp/address.h"

namespace taco::harp {

bool between_same_hosts(const AddressPair& a, const AddressPair& b,
                        std::span<const NicAddress> addresses) {
  return same_host_address(a.remote, b.remote) &&
         same_host_address(addresses[a.local].endpoint, addresses[b.local].endpoint);
}

bool PathEnds::move_to(const AddressPair& pair, Time now) {
  heard_ = now;
  if (has_tokens()) challenge() = {};
  if (pair == pair_) return false;
  pair_ = pair;
  return true;
}

bool PathEnds::on_newest_elsewhere(const AddressPair& from, Duration wait, Time now) {
  if (leads_ && now - heard_ < kPatience) return false;
  if (now < tokens().challenge_again) return false;
  tokens().challenged = now;
  tokens().challenge_again = now + wait;
  if (!(challenge().pair == from)) challenge() = {from, true, 0};
  challenge().due = true;
  return true;
}

void PathEnds::prove(Time now) { challenge_at(pair_, now); }

void PathEnds::challenge_at(const AddressPair& pair, Time now) {
  tokens().challenged = now;
  if (!(challenge().pair == pair)) challenge() = {pair, true, 0};
  challenge().due = true;
}

void PathEnds::on_challenge(const AddressPair& from, std::uint64_t token) {
  response() = {from, true, token};
}

bool PathEnds::is_answer(const AddressPair& from, std::uint64_t token) {
  if (!has_tokens() || challenge().value == 0 || token != challenge().value) return false;
  return from == challenge().pair;
}

void PathEnds::trim(Time now) {
  if (!has_tokens() || challenge().due || response().due) return;
  if (challenge().value == 0 || now - tokens().challenged >= kLongestAnswer) tokens_.reset();
}

}  // namespace taco::harp
