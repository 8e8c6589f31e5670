// Names in messages: lists of them, the one that was probably meant, and bytes as digits.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace taco {

// Makes "a, b" of "a"; "a" of "".
void append_name(std::string& list, std::string_view name);

// Two hexadecimal digits a byte.
std::string hex_of(std::span<const std::byte> bytes);

// The known name nearest to one that is not known, by edits of single characters; the first of
// several that are equally near. "" if none is known.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

}  // namespace taco
