// Status and Result: how every internal boundary reports failure. Exceptions exist only at the
// Python edge, where Status::code() chooses the exception's type.
//
// A Status is one pointer: null means success, so the happy path costs nothing.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace taco {

enum class Code : unsigned char {
  kOk = 0,
  kInvalidArgument,  // the caller's mistake: ValueError
  kUnsupported,      // a combination that does not exist here: TypeError or NotImplementedError
  kMismatch,         // ranks disagree about an operation: RuntimeError that shows both sides
  kPeerLost,         // a peer died or fell silent: PeerLostError
  kTimeout,          // an operation's own deadline passed
  kAborted,          // abort(), shutdown() or a destroyed group
  kRendezvous,       // the store or the first contact failed: RendezvousError
  kVersionMismatch,  // peers, or torch, of another version: VersionMismatchError
  kResource,         // memory, descriptors, a full disk
  kInternal,         // an invariant of ours is broken
};

// A description of a lost peer. `rank` is the rank in the group that reports the loss, -1
// where the transport reports it (it knows no ranks).
struct PeerLoss {
  int rank = -1;
  std::string address;
  double last_heard_s = -1;  // seconds between the last packet and the verdict; -1: never heard
  // The peer was never reached and listens no more: it may have died, or have left in good order
  // and found nobody to say goodbye to.
  bool may_have_left = false;
  bool has_left = false;  // in good order, by a goodbye
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // success
  Status(Code code, std::string message)
      : rep_(std::make_shared<const Rep>(Rep{code, std::move(message), std::nullopt})) {}
  Status(std::string message, PeerLoss loss)
      : rep_(std::make_shared<const Rep>(
            Rep{Code::kPeerLost, std::move(message), std::move(loss)})) {}

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const {
    static const std::string empty;
    return rep_ ? rep_->message : empty;
  }
  // Set exactly when code() == kPeerLost and the peer is known.
  const PeerLoss* peer_loss() const { return rep_ && rep_->loss ? &*rep_->loss : nullptr; }

  // The same failure with `prefix` before its message, for callers that know more than the callee.
  Status with_prefix(const std::string& prefix) const {
    if (ok()) return *this;
    Status copy;
    copy.rep_ = std::make_shared<const Rep>(Rep{rep_->code, prefix + rep_->message, rep_->loss});
    return copy;
  }

 private:
  struct Rep {
    Code code;
    std::string message;
    std::optional<PeerLoss> loss;
  };
  std::shared_ptr<const Rep> rep_;
};

// The failure of a call that asks for something impossible.
inline Status invalid(std::string text) { return Status(Code::kInvalidArgument, std::move(text)); }

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}           // NOLINT: implicit by design
  Result(Status failure) : state_(std::move(failure)) {}  // NOLINT: implicit by design

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T* operator->() { return &std::get<T>(state_); }
  T& operator*() { return std::get<T>(state_); }

 private:
  std::variant<T, Status> state_;
};

#define TACO_RETURN_IF_ERROR(expression)                                      \
  do {                                                                        \
    if (::taco::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

}  // namespace taco
