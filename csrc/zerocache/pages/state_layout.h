// The layout of an optimizer's state: on pages of its own that mirror those of the parameters. A
// parameter has elements of 4 bytes (float32) or of 2 (bfloat16), its state is float32; so to each
// page of parameters belong one or two pages of each kind of state, its *parts*, and element i of
// the parameters' page is element i of those pages together. What is stepped at once is a *chunk*:
// one part of a page of parameters with one page of each kind.
//
// The state of a parameter is a tensor of the layout, called "<parameter>/<kind>", so that
// checkpoints find it by name whatever the pages are. Pages of state that were never written hold
// nothing and take no memory: a frozen parameter has none, nor has one before its first step.
//
// Pure. Any thread may read one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

// All of float32. kMaster: the parameters themselves, where they are bfloat16.
enum class StateKind : unsigned char { kExpAvg, kExpAvgSq, kMomentumBuffer, kMaster };
inline constexpr int kStateKinds = 4;
inline constexpr std::size_t kStateElementBytes = 4;

// "exp_avg", as torch calls it; "master".
std::string_view name_of(StateKind kind);
// The name of the state's tensor: "h.0.weight/exp_avg".
std::string state_name(std::string_view parameter, StateKind kind);
// Likewise of what Adafactor keeps: "row_var", "col_var" or "variance".
std::string state_name(std::string_view parameter, std::string_view moments);
// The parameter whose state a tensor of that name would be; none: it is no name of state. Names of
// parameters may have a slash as well.
std::optional<std::string_view> parameter_of_state(std::string_view name);

class StateLayout {
 public:
  // Appends to `layout` the state of `parameters`, tensors of it by index: of each the `kinds`, and
  // kMaster where it is bfloat16, which need not be named. kInvalidArgument names a parameter whose
  // elements have another size; what Layout::append_at() refuses.
  static Result<StateLayout> append_to(Layout& layout, std::span<const std::uint32_t> parameters,
                                       std::span<const StateKind> kinds);

  // Pages of each kind of state for a page of such parameters.
  static std::uint32_t parts_of(std::uint32_t element_bytes) {
    return static_cast<std::uint32_t>(kStateElementBytes) / element_bytes;
  }
  std::span<const StateKind> kinds() const { return kinds_; }
  bool has(StateKind kind) const;
  // Whether a page holds parameters with state.
  bool covers(PageId parameters) const { return run_of(parameters) != nullptr; }
  // The page of state for part `part` of a page of parameters that is covered. kNoPage where such
  // parameters have no state of that kind.
  PageId page_of(PageId parameters, std::uint32_t part, StateKind kind) const;
  // Whether a page is one of state.
  bool is_state(PageId page) const;
  // The kind of a page of state.
  StateKind kind_of(PageId page) const;
  // All pages of state, reserved ones included.
  std::span<const Run> pages() const { return state_; }

 private:
  // Covered pages of parameters with elements of one size that follow one another.
  struct Mirrored {
    Run parameters;
    std::uint32_t parts = 1;
    std::array<PageId, kStateKinds> first;  // page of state, by kind; kNoPage: none
  };
  const Mirrored* run_of(PageId page) const;

  std::vector<StateKind> kinds_;
  std::vector<Mirrored> runs_;  // by rising page
  std::vector<Run> state_;
};

}  // namespace taco::zerocache
