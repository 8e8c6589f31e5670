// Small files whole, as the kernel shows its settings in /proc and /sys.
#pragma once

#include <cstddef>
#include <string>

namespace taco {

// "" if the file cannot be read, as where a device lacks an attribute, or is longer than `most`.
std::string read_file(const std::string& path, std::size_t most = 64 * 1024);

}  // namespace taco
