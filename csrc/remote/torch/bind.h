// The functions of this room that bindings.cc calls.
#pragma once

#include <pybind11/pybind11.h>

namespace taco::remote {

void bind_transport(pybind11::module_& module);

}  // namespace taco::remote
