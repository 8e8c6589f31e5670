// The known name that is nearest to one that is not known, for "did you mean ...?".
#pragma once

#include <span>
#include <string_view>

namespace taco {

// By edits of single characters; the first of several that are equally near. "" if none is known.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

}  // namespace taco
