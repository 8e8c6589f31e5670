#include "edge/store_door.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/far_future.h"
#include "base/heed.h"

namespace taco::edge {
namespace {

// Nobody writes this under any key: compareSet from it to itself changes nothing.
constexpr std::uint8_t kNothing = 0x7f;

// Sleeps between two looks: short while a start may just take its time, a small part of the time
// waited so far later on. Where many look, each does so less often, since they share the store and
// perhaps the processors too: a look costs some ten microseconds of both sides.
class Pace {
 public:
  explicit Pace(int lookers)
      : begin_(monotonic_now()),
        min_(std::min(lookers * kMin, kMax)),
        max_(std::clamp(lookers * kMillisecond, kMax, kMaxOfAll)) {}

  // A failure: this thread waits no longer (base/heed.h).
  Status sleep(Time until) {
    const auto pause = [](Time time) {
      sleep_until(time);
      return false;
    };
    return wait_and_heed(end_of_pause(until), pause).status();
  }
  // The same, whatever anybody has to say to this thread.
  void sleep_through(Time until) { sleep_until(end_of_pause(until)); }

 private:
  static void sleep_until(Time time) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(time - monotonic_now()));
  }
  Time end_of_pause(Time until) const {
    const Time now = monotonic_now();
    return std::min(until, later(now, std::clamp((now - begin_) / 64, min_, max_)));
  }

  static constexpr Duration kMin = 100 * kMicrosecond;
  static constexpr Duration kMax = 20 * kMillisecond, kMaxOfAll = 500 * kMillisecond;
  const Time begin_;
  const Duration min_, max_;
};

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  while (!text.empty() && (text.back() == '.' || text.back() == '?')) text.pop_back();
  return text;
}

}  // namespace

StoreDoor::StoreDoor(c10::intrusive_ptr<c10d::Store> store, Time deadline, int ranks)
    : store_(std::move(store)), deadline_(deadline), ranks_(ranks) {
  c10d::Store* inner = store_.get();
  while (auto* prefix = dynamic_cast<c10d::PrefixStore*>(inner)) {
    inner = prefix->getUnderlyingStore().get();
  }
  if (auto* tcp = dynamic_cast<c10d::TCPStore*>(inner)) {
    host_ = tcp->getHost();
    where_ = "the store at " + host_ + ":" + std::to_string(tcp->getPort());
    swaps_ = true;
  } else if (auto* file = dynamic_cast<c10d::FileStore*>(inner)) {
    where_ = "the store in file " + file->getPath();
    swaps_ = true;
  } else {
    swaps_ = dynamic_cast<c10d::HashStore*>(inner) != nullptr;
  }
}

Status StoreDoor::failure(const char* doing, const std::exception& error) const {
  return Status(Code::kRendezvous, where_ + " failed while " + doing + ": " + first_line(error) +
                                       ". Is the process that runs it (rank 0, or torchrun's "
                                       "agent) alive and reachable?");
}

Status StoreDoor::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, value);
    return Status();
  } catch (const std::exception& error) {
    return failure("writing", error);
  }
}

Result<bool> StoreDoor::check(const std::vector<std::string>& keys) {
  try {
    return store_->check(keys);
  } catch (const std::exception& error) {
    return failure("waiting", error);
  }
}

Result<std::string> StoreDoor::look(const std::string& key) {
  try {
    if (swaps_) {
      const std::vector<std::uint8_t> nothing = {kNothing};
      const std::vector<std::uint8_t> found = store_->compareSet(key, nothing, nothing);
      return found == nothing ? std::string() : std::string(found.begin(), found.end());
    }
    // A store of the program's own. A key that its owner deletes in between makes get() wait, as
    // long as the store does, for the next under that name.
    if (!store_->check({key})) return std::string();
    return store_->get_to_str(key);
  } catch (const std::exception& error) {
    return failure("reading", error);
  }
}

Result<bool> StoreDoor::wait(const std::vector<std::string>& keys, Time until) {
  until = std::min(until, deadline_);
  for (Pace pace(1);;) {
    Result<bool> all = check(keys);
    if (!all.ok() || *all || monotonic_now() >= until) return all;
    TACO_RETURN_IF_ERROR(pace.sleep(until));
  }
}

void StoreDoor::wait_until_gone(const std::string& key, Time until) {
  for (Pace pace(1); monotonic_now() < until;) {
    Result<bool> there = check({key});
    if (!there.ok() || !*there) return;
    pace.sleep_through(until);
  }
}

Result<std::string> StoreDoor::hear(const std::string& key) {
  for (Pace pace(ranks_);;) {
    Result<std::string> value = look(key);
    if (!value.ok() || !value->empty() || late()) return value;
    TACO_RETURN_IF_ERROR(pace.sleep(deadline_));
  }
}

Status StoreDoor::set_all(const std::vector<std::string>& keys,
                          const std::vector<std::string>& values) {
  if (!store_->hasExtendedApi()) {
    for (std::size_t i = 0; i < keys.size(); ++i) TACO_RETURN_IF_ERROR(set(keys[i], values[i]));
    return Status();
  }
  std::vector<std::vector<uint8_t>> bytes;
  bytes.reserve(values.size());
  for (const std::string& value : values) bytes.emplace_back(value.begin(), value.end());
  try {
    store_->multiSet(keys, bytes);
    return Status();
  } catch (const std::exception& error) {
    return failure("writing", error);
  }
}

Result<std::vector<std::string>> StoreDoor::get_all(const std::vector<std::string>& keys) {
  std::vector<std::string> values;
  if (!store_->hasExtendedApi()) {
    for (const std::string& key : keys) {
      Result<std::string> value = look(key);
      if (!value.ok()) return value.status();
      values.push_back(std::move(value).value());
    }
    return values;
  }
  try {
    for (const auto& bytes : store_->multiGet(keys))
      values.emplace_back(bytes.begin(), bytes.end());
    return values;
  } catch (const std::exception& error) {
    return failure("reading", error);
  }
}

Result<std::int64_t> StoreDoor::add(const std::string& key, std::int64_t value) {
  try {
    return store_->add(key, value);
  } catch (const std::exception& error) {
    return failure("counting", error);
  }
}

void StoreDoor::remove(const std::string& key) {
  try {
    store_->deleteKey(key);
  } catch (const std::exception&) {
    // An old key costs a few bytes and can deceive nobody.
  }
}

}  // namespace taco::edge
