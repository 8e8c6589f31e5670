// Shows what this machine offers, for `python -m taco_torch.info`: each transport is tried, not
// guessed.
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/env.h"
#include "harp/address.h"
#include "harp/drivers/open_nic.h"
#include "harp/engine/interfaces.h"
#include "harp/engine/stack.h"
#include "harp/secret.h"
#include "harp/shm/endpoint.h"
#include "pg/c10d/bind.h"

namespace py = pybind11;

namespace taco::pg {
namespace {

py::list interfaces() {
  py::list out;
  Result<std::vector<harp::Interface>> all = harp::list_interfaces();
  if (!all.ok()) throw std::runtime_error(all.status().message());
  for (const harp::Interface& interface : *all) {
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

std::string try_udp() {
  Result<std::vector<harp::Interface>> all = harp::list_interfaces();
  if (!all.ok()) return "not available: " + all.status().message();
  for (const harp::Interface& interface : *all) {
    if (!interface.up) continue;
    harp::NicOptions options;
    options.locals.push_back({interface.address, interface.mtu});
    Result<std::unique_ptr<harp::Nic>> nic = harp::open_nic(options);
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
  const auto all = harp::list_interfaces();
  if (!all.ok()) throw std::runtime_error(all.status().message());
  const harp::InterfaceWish wish{options.value().interfaces, options.value().excluded_interfaces,
                                 harp::resolve(master)};
  const auto chosen = harp::choose_interfaces(all.value(), wish, harp::kernel_routes);
  if (!chosen.ok()) throw std::invalid_argument(chosen.status().message());
  const int paths =
      harp::ports_wanted(env.value().paths, env.value().port, wish.master, harp::crosses_router);
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
  out["udp"] = try_udp();
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
