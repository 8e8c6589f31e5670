// Functions that torch registers with a backend, by numbers of its own choice. Any thread. They are
// called in the order of their numbers and under no lock, so that one may still be running when it
// has been removed. Each is held by a pointer: one that Python has made cannot be copied without
// the GIL.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace taco::pg {

template <class Hook>
class HookTable {
 public:
  void add(std::int64_t number, Hook hook) {
    change([&](Hooks& hooks) { hooks[number] = std::make_shared<const Hook>(std::move(hook)); });
  }
  void remove(std::int64_t number) {
    change([&](Hooks& hooks) { hooks.erase(number); });
  }
  bool empty() const { return empty_.load(std::memory_order_acquire); }

  template <class... Arguments>
  void call(const Arguments&... arguments) const {
    std::shared_ptr<const Hooks> hooks;
    {
      std::lock_guard lock(mutex_);
      hooks = hooks_;
    }
    for (const auto& [number, hook] : *hooks) (*hook)(arguments...);
  }

 private:
  using Hooks = std::map<std::int64_t, std::shared_ptr<const Hook>>;

  template <class Change>
  void change(Change apply) {
    std::shared_ptr<const Hooks> before;  // its end, and that of a hook, comes after the lock's
    std::lock_guard lock(mutex_);
    auto after = std::make_shared<Hooks>(*hooks_);
    apply(*after);
    empty_.store(after->empty(), std::memory_order_release);
    before = std::exchange(hooks_, std::move(after));
  }

  mutable std::mutex mutex_;
  std::shared_ptr<const Hooks> hooks_ = std::make_shared<Hooks>();
  std::atomic<bool> empty_{true};
};

}  // namespace taco::pg
