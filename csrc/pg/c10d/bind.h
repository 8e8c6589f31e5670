// Each room's bind function; bindings.cc calls them in this order.
#pragma once

#include <pybind11/pybind11.h>

namespace taco::pg {

void bind_stats(pybind11::module_& module);
void bind_info(pybind11::module_& module);
void bind_plan(pybind11::module_& module);
void bind_future(pybind11::module_& module);
void bind_backend(pybind11::module_& module);
void bind_lightcc(pybind11::module_& module);
void bind_controller(pybind11::module_& module);

}  // namespace taco::pg
