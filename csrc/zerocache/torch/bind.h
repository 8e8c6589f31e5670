// The functions of this room that bindings.cc calls.
#pragma once

#include <pybind11/pybind11.h>

namespace taco::zerocache {

void bind_storage(pybind11::module_& module);
void bind_store(pybind11::module_& module);    // after bind_storage()
void bind_lending(pybind11::module_& module);  // after bind_storage()
void bind_plan(pybind11::module_& module);     // after bind_store()

}  // namespace taco::zerocache
