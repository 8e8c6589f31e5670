// The methods by which hooks.py tells a store where a model uses its parameters.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "edge/errors.h"
#include "zerocache/torch/uses.h"

namespace taco::zerocache {

inline Uses::Pass pass_of(bool backward) {
  return backward ? Uses::Pass::kBackward : Uses::Pass::kForward;
}

template <typename Owner>
void bind_uses(pybind11::class_<Owner>& owner) {
  owner
      .def("add_part",
           [](Owner& self, const std::vector<std::string>& names) {
             return value_or_raise(self.add_part(names));
           })
      .def("forget_part", [](Owner& self, Uses::Part part) { self.uses().forget_part(part); })
      .def("begin",
           [](Owner& self, Uses::Part part, bool backward) {
             raise_if_error(self.uses().begin(part, pass_of(backward)));
           })
      .def("begin_alone",
           [](Owner& self, Uses::Part part) { raise_if_error(self.uses().begin_alone(part)); })
      .def("end", [](Owner& self, Uses::Part part,
                     bool backward) { raise_if_error(self.uses().end(part, pass_of(backward))); })
      .def("end_all", [](Owner& self) { self.uses().end_all(); })
      .def_property_readonly("open", [](Owner& self) { return self.uses().open(); });
}

}  // namespace taco::zerocache
