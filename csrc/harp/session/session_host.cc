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
  for (Session* session : sessions_) session->refresh_credit();
}

bool SessionHost::run_transmits() {
  nic_full_ = false;
  nic_.reap_st();
  if (credit_.starving()) share_credit();
  Session* const last = last_ready_;
  while (first_ready_ != nullptr) {
    Session* session = pop_ready();
    const Session::Turn turn = session->transmit(kTurnBytes);
    if (turn == Session::Turn::kNicFull) {
      make_ready(*session);
      nic_full_ = true;
      return false;
    }
    if (turn == Session::Turn::kMore) make_ready(*session);
    if (session == last) break;
  }
  return first_ready_ != nullptr;
}

}  // namespace taco::harp
