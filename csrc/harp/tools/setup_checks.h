// The checks of harp-setup: for each thing on a host what was found, whether it is good enough, and
// how it is mended. Looks only, and at files below a folder that tests may make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "harp/drivers/kernel/device_queues.h"

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
  std::size_t max_descriptors = 0;    // that a process may ask for
  std::size_t max_locked = 0;         // bytes of memory that one may lock
  std::size_t cores = 1;              // that one may run on
  std::vector<std::string> networks;  // addresses by which others may reach it
  struct Device {
    std::string name;
    DeviceQueues queues;
    bool is_hardware = true;  // or the other end is a process or another interface of this machine
  };
  std::vector<Device> devices;  // of the kernel's, that those addresses are of

  std::string driver = "udp";  // that is to be used
  std::string kernel;          // its release: "6.1.0-18-amd64"
  bool has_af_xdp = false;
  std::string dpdk;      // the version of its library; "": there is none
  bool uses_pci = true;  // DPDK's devices are hardware, or nobody has said what they are
};
// This one. Errors of the driver are in its text.
struct SeenHost {
  Host host;
  std::string problem;  // of the driver: "" where it can be used
};
// `interfaces`: those that are used, as TACO_IFNAME has them; "": all.
SeenHost see_host(const std::string& driver, const std::string& interfaces);

// All of them: of any host, and of what its driver needs.
std::vector<Check> check_host(const Host& host, std::size_t socket_buffer);
std::vector<Check> check_driver(const Host& host);

// Writes what mends it; "" or why not.
std::string mend(const Check& check);

}  // namespace taco::harp
