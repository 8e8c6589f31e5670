// What this machine offers, for `python -m taco_torch.info`: each transport is tried, not guessed.
#include <pybind11/stl.h>

#include <string>

#include "harp/address.h"
#include "harp/drivers/open_nic.h"
#include "harp/engine/interfaces.h"
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

py::dict transports() {
  py::dict out;
  out["shm"] = try_shm();
  out["udp"] = try_udp();
  return out;
}

}  // namespace

void bind_info(py::module_& module) {
  module.def("interfaces", &interfaces);
  module.def("transports", &transports);
}

}  // namespace taco::pg
