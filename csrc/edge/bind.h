// What bindings.cc calls of this room.
#pragma once

#include <pybind11/pybind11.h>

namespace taco {

void bind_errors(pybind11::module_& module);

}  // namespace taco
