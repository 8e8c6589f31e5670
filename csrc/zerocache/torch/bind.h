// What bindings.cc calls of this room.
#pragma once

#include <pybind11/pybind11.h>

namespace taco::zerocache {

void bind_storage(pybind11::module_& module);

}  // namespace taco::zerocache
