// The arguments of a command: options by name, with or without a value ("--size 8" or "--size=8"),
// and whatever else there is. An error names the argument, its value and what it must be.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace taco::harp {

struct Option {
  std::string name;   // "--size"
  std::string value;  // what the help calls it; empty: it has none
  std::string help;
  std::function<Status(const std::string& value)> take;  // of "" where it has no value
};

// Takes `arguments` in their order. What is no option goes to `take_other`.
Status take_arguments(const std::vector<std::string>& arguments, const std::vector<Option>& options,
                      const std::function<Status(const std::string&)>& take_other);

// A line or more for each option, in two columns.
std::string help_of(const std::vector<Option>& options);

// For Option::take.
std::function<Status(const std::string&)> set_flag(bool& flag);
std::function<Status(const std::string&)> set_text(std::string& text);
std::function<Status(const std::string&)> set_choice(std::string& text,
                                                     std::vector<std::string> choices);
std::function<Status(const std::string&)> set_number(double& number, double least, double most);
std::function<Status(const std::string&)> set_integer(std::int64_t& number, std::int64_t least,
                                                      std::int64_t most);
// Bytes, with K, M or G behind for 1024 of each other.
Result<std::size_t> bytes_from(const std::string& text, std::size_t least, std::size_t most);
std::function<Status(const std::string&)> set_bytes(std::size_t& bytes, std::size_t least,
                                                    std::size_t most);

}  // namespace taco::harp
