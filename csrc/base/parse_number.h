// Numbers as people write them, and the kernel in its files. Any thread.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace taco {

// Nothing: the text is not a number from its first character to its last, or none that the type
// holds. There may be a minus before it, and no plus or blank.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace taco
