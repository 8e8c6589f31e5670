#include "remote/memory_owner.h"

#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "harp/secret.h"
#include "remote/requester.h"

namespace taco::remote {
namespace {

// Requests that are unanswered, and as many whose answers are on their way.
constexpr std::size_t kMaxServings = 2 * kMaxRequests;

std::string region_text(std::uint64_t number) { return "memory " + std::to_string(number); }

}  // namespace

struct MemoryOwner::Serving {
  MemoryOwner* owner = nullptr;
  Region* region = nullptr;  // while it moves bytes
  std::uint64_t region_number = 0;
  std::uint64_t from = 0, number = 0, bytes = 0;
  bool writes = false;
  bool answering = false;
  harp::RecvRequest written;
  harp::SendRequest read, answer;
  AnswerBytes text;
};

MemoryOwner::MemoryOwner(std::uint64_t own) : own_(own) {}
MemoryOwner::~MemoryOwner() = default;

Handle MemoryOwner::add_st(std::byte* memory, std::uint64_t bytes, const Token& token) {
  const std::uint64_t number = next_region_++;
  Region& region = regions_[number];
  region.memory = memory;
  region.bytes = bytes;
  region.token = token;
  return {.endpoint = own_, .region = {number, token}, .offset = 0, .bytes = bytes};
}

void MemoryOwner::revoke_st(std::uint64_t number, std::function<void()> then) {
  const auto found = regions_.find(number);
  if (found == regions_.end()) return then();
  Region& region = found->second;
  // A second caller waits as the first one does.
  if (region.is_revoked) {
    region.then = [first = std::move(region.then), then = std::move(then)] {
      first();
      then();
    };
    return;
  }
  region.is_revoked = true;
  region.then = std::move(then);
  const Status why(Code::kAborted, region_text(number) + " was revoked while its bytes moved");
  for (const auto& serving : all_) {
    if (serving->region != &region) continue;
    if (serving->writes) {
      transport_->cancel_st(serving->written, why);
    } else {
      transport_->cancel_st(serving->read, why);
    }
  }
  if (region.moving > 0) return;
  const auto done = std::move(region.then);
  regions_.erase(found);
  done();
}

// Why the request cannot be served is told to the peer, which has a right to know no more than
// whether what it holds is good.
Result<MemoryOwner::Region*> MemoryOwner::region_for(const Request& request) {
  if (!stopped_.ok()) return stopped_;
  const std::uint64_t number = request.region.number;
  const auto found = regions_.find(number);
  if (found == regions_.end() || found->second.is_revoked) {
    if (number == 0 || number >= next_region_)
      return invalid("the handle names " + region_text(number) + ", which there never was here");
    return Status(Code::kAborted, "the handle of " + region_text(number) +
                                      " was revoked: its owner has unregistered it. Register it "
                                      "again and exchange a fresh handle");
  }
  Region& region = found->second;
  if (!harp::same_bytes(region.token, request.region.token))
    return invalid("the handle of " + region_text(number) + " is forged: its token is wrong");
  if (request.offset > region.bytes || request.bytes > region.bytes - request.offset) {
    return invalid(std::to_string(request.bytes) + " bytes at offset " +
                   std::to_string(request.offset) + " exceed " + region_text(number) +
                   ", which has " + std::to_string(region.bytes) + " bytes");
  }
  return &region;
}

// A number is used once: what has one that was used is a repetition, and does nothing.
void MemoryOwner::take_st(const Request& request, harp::Transport& transport) {
  transport_ = &transport;
  if (is_over_) return;
  if (request.number <= last_number_ || unanswered_ >= kMaxRequests) {
    TACO_LOG_DEBUG("remote", "a request of a peer that keeps to no rule was dropped: number %llu",
                   static_cast<unsigned long long>(request.number));
    return;
  }
  last_number_ = request.number;
  ++unanswered_;
  if (open_ < kMaxServings) return serve(request);
  held_.push_back({request, {request.carried.begin(), request.carried.end()}});
}

MemoryOwner::Serving& MemoryOwner::take_serving() {
  if (free_.empty()) {
    all_.push_back(std::make_unique<Serving>());
    free_.push_back(all_.back().get());
  }
  Serving& serving = *free_.back();
  free_.pop_back();
  ++open_;
  serving.owner = this;
  return serving;
}

void MemoryOwner::serve(const Request& request) {
  Serving& serving = take_serving();
  serving.from = request.from;
  serving.number = request.number;
  serving.bytes = request.bytes;
  serving.writes = request.action == Action::kWrite;
  serving.answering = false;
  Result<Region*> region = region_for(request);
  if (!region.ok()) return answer(serving, region.status());
  if (!request.carried.empty()) {
    std::memcpy((*region)->memory + request.offset, request.carried.data(), request.bytes);
    return answer(serving, Status());
  }
  serving.region = *region;
  serving.region_number = request.region.number;
  ++serving.region->moving;
  move_bytes(serving, request);
}

void MemoryOwner::move_bytes(Serving& serving, const Request& request) {
  std::byte* const memory = serving.region->memory + request.offset;
  if (serving.writes) {
    serving.written = harp::RecvRequest{};
    serving.written.key = key_of_written(own_, request.number);
    serving.written.signature = signature_of_transfer(request.bytes);
    serving.written.sink = harp::Sink::place(memory);
    serving.written.max_bytes = request.bytes;
    serving.written.context = &serving;
    serving.written.on_done = [](harp::RecvRequest& done, const Status& status) {
      Serving& which = *static_cast<Serving*>(done.context);
      which.owner->moved(which, status, done.bytes);
    };
    return transport_->recv_st(peer_, serving.written);
  }
  serving.read = harp::SendRequest{};
  serving.read.key = key_of_read(request.from, request.number);
  serving.read.signature = signature_of_transfer(request.bytes);
  serving.read.data = memory;
  serving.read.bytes = request.bytes;
  serving.read.context = &serving;
  serving.read.on_done = [](harp::SendRequest& done, const Status& status) {
    Serving& which = *static_cast<Serving*>(done.context);
    which.owner->moved(which, status, which.bytes);
  };
  transport_->send_st(peer_, serving.read);
}

void MemoryOwner::moved(Serving& serving, const Status& status, std::uint64_t bytes) {
  const std::uint64_t expected = serving.bytes;
  let_go(serving);
  if (status.ok() && bytes != expected) {
    return answer(serving, Status(Code::kMismatch, std::to_string(bytes) + " bytes came of the " +
                                                       std::to_string(expected) +
                                                       " that were to be written"));
  }
  answer(serving, status);
}

// Its bytes move no more.
void MemoryOwner::let_go(Serving& serving) {
  Region& region = *std::exchange(serving.region, nullptr);
  TACO_ASSERT(region.moving > 0);
  if (--region.moving > 0 || !region.is_revoked) return;
  const auto then = std::move(region.then);
  regions_.erase(serving.region_number);
  then();
}

void MemoryOwner::answer(Serving& serving, const Status& status) {
  if (status.code() == Code::kPeerLost || is_over_) {
    --unanswered_;
    return finish(serving);
  }
  serving.answering = true;
  serving.answer = harp::SendRequest{};
  serving.answer.key = key_of_answer(serving.from, serving.number);
  serving.answer.signature = signature_of_answer();
  serving.answer.data = serving.text.data();
  serving.answer.bytes = write_answer(status, serving.text);
  serving.answer.context = &serving;
  serving.answer.on_done = [](harp::SendRequest& done, const Status&) {
    Serving& which = *static_cast<Serving*>(done.context);
    which.owner->finish(which);
  };
  // The requester may send its next request before this send is known to have arrived.
  --unanswered_;
  transport_->send_st(peer_, serving.answer);
}

void MemoryOwner::finish(Serving& serving) {
  serving.answering = false;
  free_.push_back(&serving);
  TACO_ASSERT(open_ > 0);
  --open_;
  if (!held_.empty()) {
    const Held next = std::move(held_.front());
    held_.pop_front();
    Request request = next.request;
    request.carried = next.carried;
    serve(request);
  }
  tell_if_idle();
}

// Before the stopped owner's caller comes to end it, another request may come: that must open
// nothing.
void MemoryOwner::tell_if_idle() {
  if (!is_idle_st() || !when_idle_) return;
  is_over_ = true;
  std::exchange(when_idle_, nullptr)();
}

void MemoryOwner::stop_st(const Status& why, std::function<void()> then) {
  stopped_ = why;
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, region] : regions_) {
    if (!region.is_revoked) numbers.push_back(number);
  }
  for (const std::uint64_t number : numbers) revoke_st(number, [] {});
  when_idle_ = std::move(then);
  tell_if_idle();
}

void MemoryOwner::abandon_st(const Status& why) {
  is_over_ = true;
  unanswered_ -= held_.size();
  held_.clear();
  for (const auto& serving : all_) {
    if (serving->answering) transport_->cancel_st(serving->answer, why);
  }
}

}  // namespace taco::remote
