#include "harp/session/session_host.h"

#include <algorithm>

#include "harp/session/session.h"

namespace taco::harp {
namespace {

// One session's turn, so that a long message does not keep others waiting.
constexpr std::size_t kTurnBytes = 128 * 1024;

}  // namespace

SessionHost::SessionHost(Nic& nic, BytePool& buffers)
    : nic_(nic), buffers_(buffers), credit_(nic.capabilities().receive_buffer / 2) {}

void SessionHost::add(Session& session) { sessions_.push_back(&session); }

void SessionHost::remove(Session& session) {
  std::erase(sessions_, &session);
  if (!session.is_ready_) return;
  Session** link = &first_ready_;
  Session* before = nullptr;
  while (*link != &session) {
    before = *link;
    link = &before->next_ready_;
  }
  *link = session.next_ready_;
  if (last_ready_ == &session) last_ready_ = before;
  session.is_ready_ = false;
}

void SessionHost::make_ready(Session& session) {
  if (session.is_ready_) return;
  session.is_ready_ = true;
  session.next_ready_ = nullptr;
  (last_ready_ == nullptr ? first_ready_ : last_ready_->next_ready_) = &session;
  last_ready_ = &session;
}

Session* SessionHost::pop_ready() {
  Session* session = first_ready_;
  first_ready_ = session->next_ready_;
  if (first_ready_ == nullptr) last_ready_ = nullptr;
  session->next_ready_ = nullptr;
  session->is_ready_ = false;
  return session;
}

// Somebody waits for credit that others hold: those who hold more than their share give up some.
void SessionHost::share_credit() {
  credit_.ask_everybody();
  for (Session* session : sessions_) session->refresh_credit();
}

bool SessionHost::is_stopped(const Session& session) const {
  return std::any_of(stopped_.begin(), stopped_.end(), [&](const Session* first) {
    return first->local_path() == session.local_path();
  });
}

// The first to find its socket full stops those who send through the same one: they keep their
// places, and it goes behind them. The others go on.
bool SessionHost::run_transmits() {
  nic_full_ = false;
  nic_.reap_st();
  if (credit_.starving()) share_credit();
  Session* const last = last_ready_;
  bool may_go_on = false;
  while (first_ready_ != nullptr) {
    Session* session = pop_ready();
    if (is_stopped(*session)) {
      make_ready(*session);
    } else {
      const Session::Turn turn = session->transmit(kTurnBytes);
      if (turn == Session::Turn::kNicFull) stopped_.push_back(session);
      if (turn == Session::Turn::kMore) make_ready(*session);
    }
    if (session == last) break;
  }
  for (const Session* session = first_ready_; session != nullptr && !may_go_on;
       session = session->next_ready_) {
    may_go_on = !is_stopped(*session);
  }
  nic_full_ = !stopped_.empty() && !may_go_on;
  for (Session* session : stopped_) make_ready(*session);
  stopped_.clear();
  return may_go_on;
}

}  // namespace taco::harp
