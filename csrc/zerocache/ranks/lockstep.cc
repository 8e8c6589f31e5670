#include "zerocache/ranks/lockstep.h"

#include <algorithm>
#include <span>
#include <utility>

#include "zerocache/ranks/agreement.h"

namespace taco::zerocache {
namespace {

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Lockstep::~Lockstep() {
  if (pending_ == nullptr) return;
  const std::shared_ptr<Pending> left = std::move(pending_);
  std::exchange(left->work, nullptr)->abandon(left);
}

Status Lockstep::begin_run(const std::string& name) {
  static_cast<void>(wait());
  ended_ = broken_;
  digest_ = {};
  digest_.add(std::as_bytes(std::span(name)));
  noted_ = 0;
  run_ = name;
  return ended_;
}

void Lockstep::note(std::uint64_t event) {
  digest_.add_value(event);
  ++noted_;
}

void Lockstep::announce(Intent intent) { announce(std::move(intent), false); }

void Lockstep::announce(Intent intent, bool ends_run) {
  static_cast<void>(wait());
  if (!ended_.ok()) {
    if (intent.drop != nullptr) intent.drop(ended_);
    return;
  }
  Digest digest = digest_;
  digest.add_value(intent.digest);
  auto next = std::make_unique<Pending>();
  next->own = {digest.value(), static_cast<std::uint32_t>(intent.own.code()), ends_run ? 1u : 0u};
  next->all.resize(static_cast<std::size_t>(ranks_.size()));
  next->place = intent.what + " (after " + std::to_string(noted_) + " uses and gradients of run '" +
                run_ + "')";
  next->intent = std::move(intent);
  auto work = ranks_.all_gather(std::as_bytes(std::span(&next->own, 1)),
                                std::as_writable_bytes(std::span(next->all)));
  if (!work.ok()) {
    fail(work.status());
    if (next->intent.drop != nullptr) next->intent.drop(ended_);
    return;
  }
  next->work = std::move(work).value();
  pending_ = std::move(next);
}

Status Lockstep::wait() {
  if (pending_ == nullptr) return ended_;
  const std::unique_ptr<Pending> pending = std::move(pending_);
  Status status = judge(*pending);
  if (status.ok() && pending->intent.start != nullptr) {
    status = pending->intent.start();
    if (!status.ok()) fail(status);
  }
  if (!status.ok() && pending->intent.drop != nullptr) pending->intent.drop(status);
  return status;
}

Status Lockstep::barrier(const std::string& what, const Status& own) {
  Digest digest;
  digest.add(std::as_bytes(std::span(what)));
  announce({.what = what, .digest = digest.value(), .own = own});
  return wait();
}

void Lockstep::give_up(const Status& why) {
  if (!ended_.ok()) return;
  announce({.what = "give up", .own = why}, true);
}

void Lockstep::fail(const Status& status) {
  broken_ = status;
  static_cast<void>(end_run(status));
}

Status Lockstep::end_run(const Status& why) {
  if (ended_.ok()) ++endings_;
  ended_ = why;
  return why;
}

// Compares what all have announced, and says what follows for all.
Status Lockstep::judge(const Pending& pending) {
  if (Status told = pending.work->wait(); !told.ok()) {
    fail(told);
    return told;
  }
  const std::vector<Announcement>& all = pending.all;
  const auto differs = std::find_if(all.begin(), all.end(), [&](const Announcement& each) {
    return each.digest != all.front().digest;
  });
  const bool fails =
      std::any_of(all.begin(), all.end(), [](const Announcement& each) { return each.code != 0; });
  const bool over = std::any_of(all.begin(), all.end(),
                                [](const Announcement& each) { return each.ends_run != 0; });
  if (fails) {
    const Status status = agree(ranks_, pending.intent.own);
    return over || differs != all.end() ? end_run(status) : status;
  }
  if (differs == all.end()) return {};
  return end_run(mismatch(pending, static_cast<std::size_t>(differs - all.begin())));
}

Status Lockstep::mismatch(const Pending& pending, std::size_t other) {
  const auto places = gather(ranks_, std::as_bytes(std::span(pending.place)));
  if (!places.ok()) {
    fail(places.status());
    return places.status();
  }
  return Status(Code::kMismatch,
                "ranks have to use the same modules in the same order, but rank 0 is about to " +
                    text_of(places.value().front()) + ", and rank " + std::to_string(other) +
                    " to " + text_of(places.value()[other]) +
                    ": does the model's path depend on the data of a rank?");
}

}  // namespace taco::zerocache
