#include "harp/drivers/dpdk/dpdk_settings.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/conf_file.h"
#include "base/parse_number.h"
#include "harp/drivers/frames/ethernet.h"

namespace taco::harp {

namespace {

constexpr std::string_view kForm =
    "expected DEVICE[,ARGUMENTS] ADDRESS/PREFIX ... [gateway=ADDRESS] [mtu=N] [slots=N], with "
    "semicolons between devices";
constexpr std::string_view kMemifId = "id=";
constexpr std::size_t kIdsOfAnEngine = 65'536;
// EAL's memory where it has no huge pages, and what it takes with them.
constexpr std::size_t kMemoryMiB = 256;

std::vector<std::string> split(const std::string& text, std::string_view separators) {
  std::vector<std::string> words;
  std::size_t at = 0;
  while ((at = text.find_first_not_of(separators, at)) != std::string::npos) {
    const std::size_t end = std::min(text.find_first_of(separators, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::optional<std::size_t> number_in(std::string_view text, std::size_t least, std::size_t most) {
  const auto number = parse_number<std::size_t>(text);
  return number && *number >= least && *number <= most ? number : std::nullopt;
}

std::optional<Endpoint> address_in(const std::string& text) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  Endpoint found;
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    found = endpoint_of(reinterpret_cast<const sockaddr*>(&v4));
  } else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    found = endpoint_of(reinterpret_cast<const sockaddr*>(&v6));
  } else {
    return std::nullopt;
  }
  if (is_nobodys(found) || is_loopback(found)) return std::nullopt;
  return found;
}

Status bad_word(const DpdkDevice& device, const std::string& word, const std::string& why) {
  return Status(Code::kInvalidArgument, "TACO_HARP_DPDK: device " + device.link.name + ": \"" +
                                            word + "\" " + why + "; " + std::string(kForm));
}

Status take_own_address(DpdkDevice& device, const std::string& word) {
  const std::size_t slash = word.find('/');
  const auto address = address_in(word.substr(0, slash));
  if (!address || slash == std::string::npos) {
    return bad_word(device, word, "is no ADDRESS/PREFIX that a device can have");
  }
  const std::size_t longest = is_ipv6(*address) ? 128 : 32;
  const auto prefix = number_in(word.substr(slash + 1), 1, longest);
  if (!prefix) {
    return bad_word(device, word, "has no prefix of 1 to " + std::to_string(longest) + " bits");
  }
  device.link.addresses.push_back({*address, static_cast<int>(*prefix)});
  return {};
}

Status take_gateway(DpdkDevice& device, const std::string& word, const std::string& value) {
  const auto address = address_in(value);
  if (!address) return bad_word(device, word, "names no address");
  for (const Endpoint& other : device.link.gateways) {
    if (is_ipv6(other) == is_ipv6(*address)) {
      return bad_word(device, word, "is a second gateway of one version of IP");
    }
  }
  device.link.gateways.push_back(*address);
  return {};
}

Status take_number(DpdkDevice& device, const std::string& word, const std::string& value,
                   std::size_t least, std::size_t most, std::size_t& number) {
  const auto found = number_in(value, least, most);
  if (!found) {
    return bad_word(device, word,
                    "is not from " + std::to_string(least) + " to " + std::to_string(most));
  }
  number = *found;
  return {};
}

Status take_word(DpdkDevice& device, const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos) return take_own_address(device, word);
  const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
  if (key == "gateway") return take_gateway(device, word, value);
  // No datagram of HARP's fits into less; 9,000 is the most that its segments are made for.
  if (key == "mtu") return take_number(device, word, value, 576, 9000, device.mtu);
  if (key == "slots") return take_number(device, word, value, 64, 16'384, device.slots);
  return bad_word(device, word, "has an unknown key");
}

Status check_gateways(const DpdkDevice& device) {
  for (const Endpoint& gateway : device.link.gateways) {
    const bool is_near = std::ranges::any_of(device.link.addresses, [&](const FrameLink::Own& own) {
      return is_ipv6(own.address) == is_ipv6(gateway) &&
             same_network(own.address, gateway, own.prefix);
    });
    if (!is_near) {
      return bad_word(device, "gateway=" + to_string(gateway),
                      "is on none of the device's networks");
    }
  }
  return {};
}

Status check_addresses(const std::vector<DpdkDevice>& devices) {
  std::vector<Endpoint> seen;
  std::vector<std::string> names;
  for (const DpdkDevice& device : devices) {
    if (std::ranges::count(names, device.link.name) != 0) {
      return bad_word(device, device.link.name, "is there twice");
    }
    names.push_back(device.link.name);
    for (const FrameLink::Own& own : device.link.addresses) {
      if (std::ranges::count(seen, own.address) != 0) {
        return bad_word(device, to_string(own.address), "is another device's address as well");
      }
      seen.push_back(own.address);
    }
  }
  return {};
}

// None: it is not one that engines can have others beside.
std::optional<std::size_t> memif_id(const DpdkDevice& device) {
  std::optional<std::size_t> id = 0;
  for (const std::string& each : split(device.arguments, ",")) {
    if (!each.starts_with(kMemifId)) continue;
    id = number_in(std::string_view(each).substr(kMemifId.size()), 0, kIdsOfAnEngine - 1);
  }
  return id;
}

std::string list_of_cores(const std::vector<int>& cores) {
  std::string list;
  for (const int core : cores) list += (list.empty() ? "" : ",") + std::to_string(core);
  return list;
}

}  // namespace

Result<std::vector<DpdkDevice>> parse_dpdk_devices(const std::string& text) {
  std::vector<DpdkDevice> devices;
  for (const std::string& part : split(text, ";")) {
    const std::vector<std::string> words = split(part, " \t\n");
    if (words.empty()) continue;
    DpdkDevice device;
    const std::size_t comma = words.front().find(',');
    device.link.name = words.front().substr(0, comma);
    if (comma != std::string::npos) device.arguments = words.front().substr(comma + 1);
    for (std::size_t i = 1; i < words.size(); ++i) {
      TACO_RETURN_IF_ERROR(take_word(device, words[i]));
    }
    if (device.link.name.empty() || device.link.addresses.empty()) {
      return bad_word(device, part, "gives the device no address");
    }
    TACO_RETURN_IF_ERROR(check_gateways(device));
    devices.push_back(std::move(device));
  }
  if (devices.empty()) {
    return invalid("TACO_HARP_DRIVER=dpdk, but TACO_HARP_DPDK names no device; " +
                   std::string(kForm));
  }
  TACO_RETURN_IF_ERROR(check_addresses(devices));
  return devices;
}

DpdkDevice device_of_engine(const DpdkDevice& device, std::uint32_t engine) {
  DpdkDevice own = device;
  if (engine == 0) return own;
  own.link.name += "_" + std::to_string(engine);
  own.arguments.clear();
  for (const std::string& each : split(device.arguments, ",")) {
    if (!each.starts_with(kMemifId)) own.arguments += each + ",";
  }
  const std::size_t id = memif_id(device).value_or(0) + engine * kIdsOfAnEngine;
  own.arguments += std::string(kMemifId) + std::to_string(id);
  return own;
}

Status check_engines(const std::vector<DpdkDevice>& devices, std::uint32_t engines) {
  if (engines == 1) return {};
  const std::string wish = setting_text("TACO_HARP_ENGINES", std::to_string(engines)) +
                           " with TACO_HARP_DRIVER=dpdk" + conf_origin("TACO_HARP_DRIVER", "dpdk") +
                           ": ";
  for (const DpdkDevice& device : devices) {
    if (!device.link.name.starts_with("net_memif")) {
      return invalid(wish + "the device " + device.link.name +
                     " belongs to one engine, and only memifs can be had by several. Set "
                     "TACO_HARP_ENGINES=1, or TACO_HARP_DRIVER=xdp or udp");
    }
    if (!memif_id(device)) {
      return invalid(wish + "the device " + device.link.name + " needs an id= below " +
                     std::to_string(kIdsOfAnEngine) + ", since further engines have those beyond");
    }
  }
  return {};
}

Result<std::vector<std::string>> eal_arguments(const std::vector<DpdkDevice>& devices,
                                               const EalSurroundings& surroundings,
                                               const std::string& more) {
  // One lcore that may run wherever the process may, so that nothing is pinned.
  std::vector<std::string> arguments{"taco",
                                     "--lcores=0@(" + list_of_cores(surroundings.cores) + ")",
                                     "--no-telemetry", "--log-level=4"};
  if (surroundings.huge_page_bytes >= kMemoryMiB << 20) {
    arguments.push_back("--in-memory");
  } else {
    arguments.insert(arguments.end(),
                     {"--no-huge", "-m", std::to_string(kMemoryMiB), "--no-shconf"});
  }
  bool has_pci = false;
  for (const DpdkDevice& device : devices) {
    if (!device.is_pci()) continue;
    has_pci = true;
    arguments.insert(
        arguments.end(),
        {"-a", device.link.name + (device.arguments.empty() ? "" : "," + device.arguments)});
  }
  if (!has_pci) arguments.push_back("--no-pci");
  for (const std::string& word : split(more, " \t\n")) {
    if (word == "-h" || word == "-v" || word == "--help" || word == "--version" ||
        word.starts_with("--proc-type")) {
      return invalid("TACO_HARP_DPDK_EAL: " + word +
                     " is for programs of DPDK's own, and no argument for a transport");
    }
    arguments.push_back(word);
  }
  return arguments;
}

}  // namespace taco::harp
