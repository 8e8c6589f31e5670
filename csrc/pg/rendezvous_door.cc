#include "pg/rendezvous_door.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace taco::pg {
namespace {

std::chrono::milliseconds to_milliseconds(Duration duration) {
  return std::chrono::milliseconds(std::max<Duration>(1, duration / kMillisecond));
}

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

StoreDoor::StoreDoor(const c10::intrusive_ptr<c10d::Store>& store, Time deadline)
    : deadline_(deadline) {
  try {
    store_ = store->clone();
  } catch (const std::exception&) {
    store_ = store;  // stores written in Python need not know clone()
  }
  saved_timeout_ = store_->getTimeout();
  c10d::Store* inner = store.get();
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

StoreDoor::~StoreDoor() {
  try {
    store_->setTimeout(saved_timeout_);
  } catch (const std::exception&) {
    // The store is gone; so is its timeout.
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

Result<bool> StoreDoor::wait(const std::vector<std::string>& keys, Duration slice) {
  const Time begin = monotonic_now();
  slice = std::min(slice, std::max<Duration>(kMillisecond, deadline_ - begin));
  try {
    store_->wait(keys, to_milliseconds(slice));
    return true;
  } catch (const std::exception& error) {
    // Stores tell a timeout apart from a broken connection by their text only; time tells it too.
    if (monotonic_now() - begin >= slice - slice / 10) return false;
    return failure("waiting", error);
  }
}

Result<bool> StoreDoor::check(const std::string& key) {
  try {
    return store_->check({key});
  } catch (const std::exception& error) {
    return failure("looking for a key", error);
  }
}

Result<std::string> StoreDoor::get(const std::string& key) {
  try {
    store_->setTimeout(to_milliseconds(deadline_ - monotonic_now()));
    return store_->get_to_str(key);
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
