// Small files whole, as the kernel shows its settings in /proc and /sys, and as processes of one
// user tell each other something. Any thread.
#pragma once

#include <cstddef>
#include <string>

#include "base/clock.h"

namespace taco {

// "" if the file cannot be read, as where a device lacks an attribute, or is longer than `most`.
std::string read_file(const std::string& path, std::size_t most = 64 * 1024);
// Puts the text there whole or not at all, for this user alone. False: errno says why not.
bool write_file(const std::string& path, const std::string& text);
// The text that another process has put there in that way, once it is there. "": not by `limit`.
std::string await_file(const std::string& path, Time limit);

}  // namespace taco
