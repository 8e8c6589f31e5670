#include "pg/controller/summons.h"

#include <utility>

namespace taco::pg::controller {

// The same on all ranks, which are of one build of one architecture (edge/rendezvous.h).
struct Summons::Message {
  std::int32_t set = 0;
  What what = What::kTellWaiting;

  OperationSpec spec(pg::Kind kind) {
    OperationSpec spec{.kind = kind, .dtype = kernels::Dtype::kU8, .root = -1, .timeout = kNever};
    const Piece piece{reinterpret_cast<std::byte*>(this), sizeof(Message)};
    (kind == pg::Kind::kSend ? spec.inputs : spec.outputs) = {piece};
    return spec;
  }
};

void Summons::listen() {
  if (group_ == nullptr || stopped_) return;
  const auto message = std::make_shared<Message>();
  OperationSpec spec = message->spec(pg::Kind::kRecvAny);
  spec.ended_st = [this, message, inbox = inbox_](const Status& status, Duration) {
    inbox->post([this, message, status] { heard(message, status); });
  };
  const Result<OperationPtr> started = group_->start(std::move(spec));
  if (!started.ok()) owner_.summons_failed(started.status());
}

void Summons::heard(const std::shared_ptr<Message>& message, const Status& status) {
  if (stopped_) return;
  if (!status.ok()) return owner_.summons_failed(status);
  const bool is_known = message->what == What::kEnd || message->what == What::kTellWaiting;
  if (is_known) owner_.summoned(message->set, message->what);
  listen();
}

void Summons::call(const std::vector<int>& ranks, int set, What what) {
  if (group_ == nullptr || stopped_) return;
  for (const int rank : ranks) {
    if (rank == group_->options().rank) continue;
    const auto message = std::make_shared<Message>(Message{set, what});
    OperationSpec spec = message->spec(pg::Kind::kSend);
    spec.root = rank;
    // Keeps the memory. Where the send fails, so does the receive, with the group.
    spec.ended_st = [message](const Status&, Duration) {};
    (void)group_->start(std::move(spec));
  }
}

void Summons::stop(const Status& why) {
  if (std::exchange(stopped_, true) || group_ == nullptr) return;
  group_->abort(why);
  (void)group_->close(0);
}

}  // namespace taco::pg::controller
