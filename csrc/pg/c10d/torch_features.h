// Types that torch's c10d has from some minor version on, for all versions: where torch lacks one,
// a type of the same shape stands in, and nobody calls the functions of Backend that take it. Those
// are therefore declared without `override`, which older versions would refuse; a test calls each
// through torch.
#pragma once

#include <torch/headeronly/version.h>

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

}  // namespace taco::pg
