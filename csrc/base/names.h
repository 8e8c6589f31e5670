// Names in messages: lists of them, and the one that was probably meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace taco {

// Makes "a, b" of "a"; "a" of "".
void append_name(std::string& list, std::string_view name);

// The known name nearest to one that is not known, by edits of single characters; the first of
// several that are equally near. "" if none is known.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

}  // namespace taco
