#include "harp/session/path.h"

namespace taco::harp {

void Path::move_to(const AddressPair& pair, Time now) {
  heard_ = now;
  if (has_tokens()) challenge() = {};
  if (pair == pair_) return;
  pair_ = pair;
  mtu_.doubt(now);
}

bool Path::on_newest_elsewhere(const AddressPair& from, Duration wait, Time now) {
  if (leads_ && now - heard_ < kPatience) return false;
  if (now < tokens().challenge_again) return false;
  tokens().challenged = now;
  tokens().challenge_again = now + wait;
  if (!(challenge().pair == from)) challenge() = {from, true, 0};
  challenge().due = true;
  return true;
}

void Path::trim(Time now) {
  if (!has_tokens() || challenge().due || response().due) return;
  if (challenge().value == 0 || now - tokens().challenged >= kLongestAnswer) tokens_.reset();
}

void Path::on_challenge(const AddressPair& from, std::uint64_t token) {
  response() = {from, true, token};
}

bool Path::on_response(const AddressPair& from, std::uint64_t token, Time now) {
  if (!has_tokens() || challenge().value == 0 || token != challenge().value) return false;
  if (!(from == challenge().pair)) return false;
  move_to(from, now);
  return true;
}

}  // namespace taco::harp
