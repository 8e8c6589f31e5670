// The huge pages that a host has reserved.
#pragma once

#include <cstddef>
#include <string>

namespace taco {

// Bytes in those of all sizes that nobody uses. `root`: before /sys.
std::size_t free_huge_page_bytes(const std::string& root = "");

}  // namespace taco
