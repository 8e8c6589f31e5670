// Shows what this machine offers, for `python -m taco_torch.info`: each transport is tried, not
// guessed.
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/env.h"
#include "harp/address.h"
#include "harp/drivers/networks.h"
#include "harp/engine/interfaces.h"
#include "harp/engine/routes.h"
#include "harp/engine/stack.h"
#include "harp/secret.h"
#include "harp/shm/endpoint.h"
#include "pg/c10d/bind.h"

namespace py = pybind11;

namespace taco::pg {
namespace {

// If the environment is malformed, which planned_paths() says, that of a process without any.
std::shared_ptr<const harp::Network> network_in_force() {
  const auto options = harp::StackOptions::from_env();
  return harp::network_named(options.ok() ? options.value().driver : "auto").value();
}

py::list interfaces() {
  py::list out;
  const auto all = network_in_force()->interfaces();
  if (!all.ok()) throw std::runtime_error(all.status().message());
  for (const harp::Interface& interface : all.value()) {
    py::dict entry;
    entry["name"] = interface.name;
    entry["address"] = harp::to_string(interface.address);
    entry["up"] = interface.up;
    entry["loopback"] = interface.loopback;
    entry["mtu"] = interface.mtu;
    entry["mbits"] = interface.mbits;
    out.append(entry);
  }
  return out;
}

std::string try_network(const harp::Network& network) {
  const auto all = network.interfaces();
  if (!all.ok()) return "not available: " + all.status().message();
  for (const harp::Interface& interface : all.value()) {
    if (!interface.up) continue;
    harp::NicOptions options;
    options.locals.push_back({interface.address, interface.mtu});
    const auto nic = network.open(options);
    if (!nic.ok()) return "not available: " + nic.status().message();
    return "available";
  }
  return "not available: no interface is up";
}

std::string try_shm() {
  auto endpoint = harp::ShmEndpoint::create({});
  return endpoint.ok() ? "available" : "not available: " + endpoint.status().message();
}

// Where a process that joined a job here would send from, and why not from elsewhere: by the rules
// that a Stack follows (harp/engine/interfaces.h).
py::dict planned_paths(const std::string& master) {
  const auto env = Env::get();
  if (!env.ok()) throw std::invalid_argument(env.status().message());
  const auto options = harp::StackOptions::from_env();
  if (!options.ok()) throw std::invalid_argument(options.status().message());
  const auto network = network_in_force();
  const auto all = network->interfaces();
  if (!all.ok()) throw std::runtime_error(all.status().message());
  const harp::InterfaceWish wish{options.value().interfaces, options.value().excluded_interfaces,
                                 harp::resolve(master)};
  const auto chosen = harp::choose_interfaces(all.value(), wish, network->routes());
  if (!chosen.ok()) throw std::invalid_argument(chosen.status().message());
  const int paths =
      harp::ports_wanted(env.value().paths, env.value().port, wish.master,
                         [&](const harp::Endpoint& to) { return network->crosses_router(to); });
  const auto ports = harp::spread_ports(chosen.value(), paths);
  py::list from, unused;
  for (const harp::LocalPort& local : ports) {
    if (local.interface.loopback) continue;  // inside the host only, where there is no other way
    py::dict entry;
    entry["interface"] = local.interface.name;
    entry["address"] = harp::to_string(local.interface.address);
    entry["port"] = local.port + 1;
    entry["mtu"] =
        env.value().mtu != 0 ? static_cast<std::uint32_t>(env.value().mtu) : local.interface.mtu;
    entry["mbits"] = local.interface.mbits;
    from.append(entry);
  }
  for (const harp::Interface& interface : all.value()) {
    const bool used = !interface.loopback &&
                      std::any_of(ports.begin(), ports.end(), [&](const harp::LocalPort& local) {
                        return local.interface.name == interface.name &&
                               local.interface.address == interface.address;
                      });
    if (used) continue;
    py::dict entry;
    entry["interface"] = interface.name;
    entry["address"] = harp::to_string(interface.address);
    entry["why"] = harp::why_not_chosen(interface, chosen.value(), wish);
    unused.append(entry);
  }
  py::dict out;
  out["ports"] = ports.empty() ? 0 : ports.back().port + 1;
  out["ports_wanted"] = paths;
  out["from"] = from;
  out["unused"] = unused;
  return out;
}

py::dict transports() {
  py::dict out;
  out["shm"] = try_shm();
  const auto network = network_in_force();
  out[py::str(std::string(network->name()))] = try_network(*network);
  return out;
}

}  // namespace

void bind_info(py::module_& module) {
  module.def("crypto_library", &harp::crypto_library);
  module.def("interfaces", &interfaces);
  module.def("planned_paths", &planned_paths, py::arg("master"));
  module.def("transports", &transports);
}

}  // namespace taco::pg
