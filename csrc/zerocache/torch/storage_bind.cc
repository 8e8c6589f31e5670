// _C.zerocache: internal, for the tests of what a parameter keeps while its bytes move.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "edge/errors.h"
#include "zerocache/torch/bind.h"
#include "zerocache/torch/parameter_range.h"
#include "zerocache/torch/uses_bind.h"

namespace py = pybind11;

namespace taco::zerocache {
namespace {

using Method = Status (ParameterRange::*)(const std::string&);

std::unique_ptr<ParameterRange> make(std::size_t frame_bytes, std::size_t max_frames,
                                     std::size_t range_bytes, bool poison) {
  ParameterRange::Options options;
  options.frame_bytes = frame_bytes;
  options.max_frames = max_frames;
  options.range_bytes = range_bytes;
  options.poison = poison;
  return value_or_raise(ParameterRange::create(options));
}

template <Method method>
void call(ParameterRange& range, const std::string& name) {
  raise_if_error((range.*method)(name));
}

}  // namespace

void bind_storage(py::module_& module) {
  py::module_ inner = module.def_submodule("zerocache");
  py::class_<ParameterRange> bound(inner, "ParameterRange");
  bound
      .def(py::init(&make), py::arg("frame_bytes"), py::arg("max_frames"), py::arg("range_bytes"),
           py::arg("poison") = true)
      .def("place", [](ParameterRange& range, const std::string& name,
                       const at::Tensor& tensor) { raise_if_error(range.place(name, tensor)); })
      .def("evict", &call<&ParameterRange::evict>)
      .def("fetch", &call<&ParameterRange::fetch>)
      .def("restore", &call<&ParameterRange::restore>)
      .def("write", [](ParameterRange& range, const std::string& name,
                       const at::Tensor& values) { raise_if_error(range.write(name, values)); })
      .def("present", [](const ParameterRange& range,
                         const std::string& name) { return value_or_raise(range.present(name)); })
      .def("address", [](const ParameterRange& range,
                         const std::string& name) { return value_or_raise(range.address(name)); })
      .def_property_readonly("frames",
                             [](const ParameterRange& range) { return range.usage().frames; });
  bind_uses(bound);
}

}  // namespace taco::zerocache
