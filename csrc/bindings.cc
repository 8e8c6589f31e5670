// The extension module taco_torch._C.
#include <pybind11/pybind11.h>

#include "edge/bind.h"
#include "pg/c10d/bind.h"
#include "remote/torch/bind.h"
#include "zerocache/torch/bind.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The compiled side of taco_torch.";
  // c10d's types must be known to pybind11 before classes that derive from them.
  pybind11::module_::import("torch.distributed");
  module.attr("__version__") = TACO_VERSION;
  module.attr("built_for_torch") = TACO_TORCH_VERSION;
  taco::bind_errors(module);
  taco::pg::bind_stats(module);
  taco::pg::bind_info(module);
  taco::pg::bind_plan(module);
  taco::pg::bind_future(module);
  taco::pg::bind_backend(module);
  taco::pg::bind_lightcc(module);
  taco::pg::bind_controller(module);
  taco::remote::bind_transport(module);
  taco::zerocache::bind_storage(module);
  taco::zerocache::bind_store(module);
  taco::zerocache::bind_lending(module);
  taco::zerocache::bind_plan(module);
}
