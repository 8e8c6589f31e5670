#include "pg/group/farewell.h"

#include <algorithm>
#include <utility>

#include "base/completion_thread.h"

namespace taco::pg {

void Farewell::idle_st() {
  if (when_idle_) completion::post(std::exchange(when_idle_, nullptr));
  if (!leaving_) return;
  drained_.set();
  owner_.wake_st();
}

void Farewell::ask_st(harp::Transport& transport, std::vector<int> receivers) {
  unconfirmed_ = std::move(receivers);
  if (failed_ || unconfirmed_.empty()) return confirm_st();
  interval_ = kFirstAsk;
  timer_.arm_st(transport, transport.now_st() + interval_);
  ask_all_st();
}

void Farewell::ask_again_st(Time now) {
  if (unconfirmed_.empty()) return;
  interval_ = std::min(2 * interval_, kLastAsk);
  timer_.again_st(now + interval_);
  ask_all_st();
}

void Farewell::ask_all_st() {
  for (const int rank : unconfirmed_) owner_.ask_receiver_st(rank);
}

bool Farewell::awaits_st(int rank) const {
  return std::ranges::find(unconfirmed_, rank) != unconfirmed_.end();
}

void Farewell::confirmed_st(int rank) {
  if (std::erase(unconfirmed_, rank) > 0 && unconfirmed_.empty()) confirm_st();
}

void Farewell::failed_st() {
  failed_ = true;
  unconfirmed_.clear();
  confirm_st();
}

void Farewell::confirm_st() {
  confirmed_.set();
  owner_.wake_st();
}

}  // namespace taco::pg
