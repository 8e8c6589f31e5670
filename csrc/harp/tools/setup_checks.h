// The checks of harp-setup: for each thing on a host what was found, whether it is good enough, and
// how it is mended. Looks only, and at files below a folder that tests may make.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace taco::harp {

struct Check {
  std::string name;   // "socket buffers"
  std::string found;  // in words
  bool good = true;
  std::string mend;         // the command; "" where it is good
  std::string file, value;  // mended by writing the value there; "": by people alone
};

struct Host {
  std::string root;                   // before /proc and /sys; "" of the real one
  std::size_t most_descriptors = 0;   // that a process may ask for
  std::vector<std::string> networks;  // addresses by which others may reach it
};
// This one. Errors of the driver are in its text.
struct SeenHost {
  Host host;
  std::string problem;  // of the driver: "" where it can be used
};
SeenHost see_host(const std::string& driver);

std::vector<Check> check_host(const Host& host, std::size_t socket_buffer);

// Writes what mends it; "" or why not.
std::string mend(const Check& check);

}  // namespace taco::harp
