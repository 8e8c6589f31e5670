#include "pg/controller/submission.h"

#include <exception>
#include <new>
#include <utility>

#include "base/per_process.h"

namespace taco::pg::controller {
namespace {

// This rank cannot take part in what all have agreed on, which is the end of the controller.
Status cannot(std::string why) { return Status(Code::kAborted, std::move(why)); }

// Calls what the program has given, which may throw anything.
template <class Ask>
auto asked_of_program(const Ask& ask) -> decltype(ask()) {
  try {
    return ask();
  } catch (const std::bad_alloc& error) {
    return Status(Code::kResource, error.what());
  } catch (const std::exception& error) {
    return cannot(error.what());
  } catch (...) {
    return cannot("what its callback throws is no std::exception");
  }
}

Status check_piece(const Piece& piece, std::uint64_t bytes) {
  if (piece.bytes != bytes) {
    return cannot("it has " + std::to_string(piece.bytes) +
                  " bytes of memory, and the request is of " + std::to_string(bytes) +
                  ": leave a tensor as it is until its operation is done");
  }
  if (bytes == 0 || piece.data != nullptr) return Status();
  return cannot("it has no memory any more: leave a tensor as it is until its operation is done");
}

struct OutcomeOfCopy {
  const Outcome value{.status = left_in_parent()};
};
constinit PerProcess<OutcomeOfCopy> outcome_of_copies;

}  // namespace

PendingRequest::PendingRequest(int set, Request request, std::shared_ptr<Tensors> tensors,
                               Time submitted)
    : set(set),
      request(std::move(request)),
      submitted(submitted),
      tensors_(std::move(tensors)),
      ended_() {}

PendingRequest::~PendingRequest() {
  if (is_copy()) return;
  std::destroy_at(&tensors_);
  std::destroy_at(&ended_);
}

const Outcome& PendingRequest::outcome() const {
  return is_copy() && !has_ended() ? outcome_of_copies().value : outcome_;
}

bool PendingRequest::wait_until(Time until) {
  if (done()) return true;
  std::unique_lock lock(mutex_);
  return ended_.wait_until(lock, until, [this] { return has_ended(); });
}

Result<std::vector<Piece>> PendingRequest::inputs() const {
  const auto about = [this](const Status& why) {
    return why.with_prefix("a tensor for " + describe() + " cannot be read: ");
  };
  Result<std::vector<Piece>> pieces =
      asked_of_program([this]() -> Result<std::vector<Piece>> { return tensors_->inputs(); });
  if (!pieces.ok()) return about(pieces.status());
  if (pieces->size() != request.shapes.size()) {
    return about(cannot("there are " + std::to_string(pieces->size()) + " for " +
                        std::to_string(request.shapes.size()) + " shapes"));
  }
  for (std::size_t tensor = 0; tensor < pieces->size(); ++tensor) {
    const std::uint64_t bytes = bytes_of(request.shapes[tensor], request.dtype);
    if (const Status bad = check_piece((*pieces)[tensor], bytes); !bad.ok()) return about(bad);
  }
  return pieces;
}

Result<Piece> PendingRequest::output(std::size_t tensor, const Shape& shape) const {
  const auto about = [this](const Status& why) {
    return why.with_prefix("a result of " + describe() + " cannot be written: ");
  };
  Result<Piece> piece =
      asked_of_program([&]() -> Result<Piece> { return tensors_->output(tensor, shape); });
  if (!piece.ok()) return about(piece.status());
  if (const Status bad = check_piece(*piece, bytes_of(shape, request.dtype)); !bad.ok()) {
    return about(bad);
  }
  return piece;
}

void PendingRequest::end(const Outcome& outcome) {
  tensors_.reset();
  outcome_ = outcome;
  done_.store(true, std::memory_order_release);
}

void PendingRequest::tell() {
  std::lock_guard lock(mutex_);  // whoever has seen it undone waits by now
  ended_.notify_all();
}

std::string PendingRequest::describe() const { return described(request); }

}  // namespace taco::pg::controller
