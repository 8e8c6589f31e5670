#include "ext/nccl/check/traffic.h"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace harp::nccl::check {

using taco::Code;

// One direction: messages in slots of one registered buffer.
class Movement::Flow {
 public:
  Flow(Network& network, void* comm, const Traffic& traffic, unsigned seed, bool sends)
      : network_(network),
        comm_(comm),
        traffic_(traffic),
        seed_(seed),
        sends_(sends),
        buffer_(slot_bytes() * traffic.under_way),
        requests_(traffic.under_way) {}

  Status open();
  Status close();
  Result<bool> go_on();
  bool done() const { return finished_ == traffic_.sizes.size(); }

 private:
  std::size_t slot_bytes() const { return std::max<std::size_t>(traffic_.room, 64); }
  std::size_t slot_of(std::size_t message) const {
    return message % traffic_.under_way * slot_bytes();
  }
  unsigned seed_of(std::size_t message) const {
    return seed_ + static_cast<unsigned>(message) * 7919u;
  }
  // Buffers look like this after their message.
  static constexpr unsigned kSpoilt = 0xDEAD;

  Result<bool> post();
  Result<bool> look();
  Status check(std::size_t message, std::size_t bytes);

  Network& network_;
  void* const comm_;
  const Traffic& traffic_;
  const unsigned seed_;
  const bool sends_;
  Buffer buffer_;
  std::vector<void*> requests_;
  std::optional<Registered> registered_;  // once it is open
  std::size_t posted_ = 0, finished_ = 0;
};

Status Movement::Flow::open() {
  auto registered = Registered::with(network_, comm_, buffer_.data(), buffer_.size());
  if (!registered.ok()) return registered.status();
  registered_.emplace(std::move(registered).value());
  return {};
}

// Buffers that were received into have been spoilt since.
Status Movement::Flow::close() {
  for (std::size_t slot = 0; !sends_ && slot < std::min(traffic_.under_way, finished_); ++slot) {
    const Status alone = buffer_.expect(slot * slot_bytes(), traffic_.room, kSpoilt);
    if (!alone.ok()) {
      return {Code::kMismatch, "a buffer was written after its receive was done"};
    }
  }
  return registered_->end();
}

Result<bool> Movement::Flow::go_on() {
  auto posted = post();
  if (!posted.ok()) return posted;
  auto looked = look();
  if (!looked.ok()) return looked;
  return posted.value() || looked.value();
}

Result<bool> Movement::Flow::post() {
  if (posted_ == traffic_.sizes.size() || posted_ == finished_ + traffic_.under_way) return false;
  const std::size_t at = slot_of(posted_);
  if (sends_) buffer_.fill(at, traffic_.sizes[posted_], seed_of(posted_));
  std::byte* const data = buffer_.data() + at;
  const auto request =
      sends_ ? network_.send(comm_, data, traffic_.sizes[posted_], registered_->region())
             : network_.receive(comm_, data, traffic_.room, registered_->region());
  if (!request.ok()) return request.status();
  if (request.value() == nullptr) return false;
  requests_[posted_++ % traffic_.under_way] = request.value();
  return true;
}

Result<bool> Movement::Flow::look() {
  if (finished_ == posted_) return false;
  const auto bytes = network_.test(requests_[finished_ % traffic_.under_way]);
  if (!bytes.ok()) return bytes.status();
  if (!bytes.value()) return false;
  const Status good = check(finished_, *bytes.value());
  if (!good.ok()) return good.with_prefix("message " + std::to_string(finished_) + ": ");
  buffer_.fill(slot_of(finished_), sends_ ? traffic_.sizes[finished_] : traffic_.room, kSpoilt);
  ++finished_;
  return true;
}

Status Movement::Flow::check(std::size_t message, std::size_t bytes) {
  if (bytes != traffic_.sizes[message]) {
    return {Code::kMismatch, "test gave " + std::to_string(bytes) + " bytes instead of " +
                                 std::to_string(traffic_.sizes[message])};
  }
  return sends_ ? Status() : buffer_.expect(slot_of(message), bytes, seed_of(message));
}

Movement::Movement(Network& network, const Ring& ring, const Fellows& fellows,
                   const Traffic& traffic) {
  const auto seed_of = [&](int rank) { return traffic.seed + static_cast<unsigned>(rank) * 131u; };
  const int before = (fellows.rank() + fellows.count() - 1) % fellows.count();
  out_ = std::make_unique<Flow>(network, ring.send, traffic, seed_of(fellows.rank()), true);
  in_ = std::make_unique<Flow>(network, ring.receive, traffic, seed_of(before), false);
}

Movement::~Movement() = default;

Status Movement::open() {
  TACO_RETURN_IF_ERROR(out_->open());
  return in_->open();
}

Result<bool> Movement::step() {
  auto out = out_->go_on();
  if (!out.ok()) return out;
  auto in = in_->go_on();
  if (!in.ok()) return in;
  return out.value() || in.value();
}

bool Movement::done() const { return out_->done() && in_->done(); }

Status Movement::close() {
  TACO_RETURN_IF_ERROR(out_->close());
  return in_->close();
}

Status move_around(Network& network, const Ring& ring, const Fellows& fellows,
                   const Traffic& traffic) {
  Movement movement(network, ring, fellows, traffic);
  TACO_RETURN_IF_ERROR(movement.open());
  while (!movement.done()) {
    const auto moved = movement.step();
    if (!moved.ok()) return moved.status();
    if (taco::monotonic_now() > fellows.deadline()) {
      return {Code::kTimeout, "not all messages came in time"};
    }
    if (!moved.value()) std::this_thread::yield();
  }
  return movement.close();
}

}  // namespace harp::nccl::check
