// Types that torch's c10d has from some minor version on, for all versions: where torch lacks one,
// a type of the same shape stands in, and nobody calls the functions of Backend that take it. Those
// are therefore declared without `override`, which older versions would refuse; a test calls each
// through torch.
#pragma once

#include <torch/headeronly/version.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#define TACO_TORCH_SINCE(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace taco::pg {

// Before, Python asks backends other than torch's own for estimates by names that they do not have.
inline constexpr bool kCanEstimateTime = TACO_TORCH_SINCE(15);

#if TACO_TORCH_SINCE(15)
using CompletionHook = c10d::CompletionHook;
using CompletionHookArgs = c10d::CompletionHookArgs;
#else
struct CompletionHookArgs {
  std::uint64_t completionKey = 0;
  std::optional<float> duration_ms;
};
using CompletionHook = std::function<void(const CompletionHookArgs&)>;
#endif

using AbortHook = std::function<void()>;  // c10d::AbortHook, since 2.14

#if TACO_TORCH_SINCE(14)
using ReconfigureOptions = c10d::ReconfigureOptions;
inline bool may_reconfigure(const c10d::Backend::Options& options) {
  return options.enable_reconfigure;
}
inline void set_may_reconfigure(c10d::Backend::Options& options, bool may) {
  options.enable_reconfigure = may;
}
// A group's own rank and size, which are constant in a torch whose groups are.
inline void set_number(int& number, int value) { number = value; }
#else
struct ReconfigureOptions {
  std::int64_t uuid = 0;
  std::variant<std::unordered_set<std::string>, std::vector<std::string> > handles;
  std::optional<std::chrono::milliseconds> timeout;
  std::unordered_map<std::string, std::string> hints;
};
inline bool may_reconfigure(const c10d::Backend::Options&) { return false; }
inline void set_may_reconfigure(c10d::Backend::Options&, bool) {}
inline void set_number(const int&, int) {}
#endif

}  // namespace taco::pg
