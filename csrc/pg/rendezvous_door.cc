#include "pg/rendezvous_door.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace taco::pg {
namespace {

// One sleep in the store; nobody else can use its connection meanwhile.
constexpr Duration kFirstSlice = 50 * kMillisecond;
constexpr Duration kLongestSlice = 250 * kMillisecond;
// Between two of them: long enough for a thread that waits for the connection to get it.
constexpr Duration kBetweenSlices = kMillisecond;

std::chrono::milliseconds to_milliseconds(Duration duration) {
  return std::chrono::milliseconds(std::max<Duration>(1, duration / kMillisecond));
}

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  while (!text.empty() && (text.back() == '.' || text.back() == '?')) text.pop_back();
  return text;
}

}  // namespace

StoreDoor::StoreDoor(c10::intrusive_ptr<c10d::Store> store, Time deadline)
    : store_(std::move(store)), deadline_(deadline) {
  c10d::Store* inner = store_.get();
  while (auto* prefix = dynamic_cast<c10d::PrefixStore*>(inner)) {
    inner = prefix->getUnderlyingStore().get();
  }
  if (auto* tcp = dynamic_cast<c10d::TCPStore*>(inner)) {
    host_ = tcp->getHost();
    where_ = "the store at " + host_ + ":" + std::to_string(tcp->getPort());
  } else if (auto* file = dynamic_cast<c10d::FileStore*>(inner)) {
    where_ = "the store in file " + file->getPath();
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

Result<bool> StoreDoor::wait(const std::vector<std::string>& keys, Time until) {
  until = std::min(until, deadline_);
  for (Duration slice = kFirstSlice;; slice = std::min(2 * slice, kLongestSlice)) {
    const Time now = monotonic_now();
    if (now >= until) return check(keys);
    const auto most = to_milliseconds(std::min(slice, until - now));
    try {
      store_->wait(keys, most);
      return true;
    } catch (const std::exception& error) {
      // Stores tell a timeout from a broken connection by their text only; time tells it too.
      if (monotonic_now() < now + most.count() * kMillisecond) return failure("waiting", error);
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kBetweenSlices));
  }
}

Result<std::string> StoreDoor::get(const std::string& key) {
  try {
    return store_->get_to_str(key);
  } catch (const std::exception& error) {
    return failure("reading", error);
  }
}

Status StoreDoor::set_all(const std::vector<std::string>& keys,
                          const std::vector<std::string>& values) {
  if (!store_->hasExtendedApi()) {
    for (std::size_t i = 0; i < keys.size(); ++i) TACO_RETURN_IF_ERROR(set(keys[i], values[i]));
    return Status();
  }
  std::vector<std::vector<uint8_t>> bytes;
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
      Result<std::string> value = get(key);
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

}  // namespace taco::pg
