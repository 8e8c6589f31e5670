// Backend as Python sees it: a constructor, its options, and what c10d's own binding lacks.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <variant>

#include "base/env.h"
#include "edge/errors.h"
#include "pg/algorithms/forced.h"
#include "pg/c10d/backend.h"
#include "pg/c10d/backend_registry.h"
#include "pg/c10d/bind.h"

namespace py = pybind11;

namespace taco::pg {
namespace {

using Milliseconds = std::chrono::milliseconds;

c10::intrusive_ptr<Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         int size, const c10::intrusive_ptr<Backend::Options>& from,
                                         Milliseconds timeout, const std::string& name,
                                         const std::vector<uint64_t>& global_ranks,
                                         bool enable_reconfigure) {
  // The caller may reuse its pg_options for other groups: work on a copy.
  auto options =
      from ? c10::make_intrusive<Backend::Options>(*from) : c10::make_intrusive<Backend::Options>();
  options->timeout = timeout;
  options->group_name = name;
  options->global_ranks_in_group = global_ranks;
  if (enable_reconfigure) set_may_reconfigure(*options, true);
  return Backend::create(store, rank, size, std::move(options));
}

void monitored_barrier(Backend& backend, std::optional<Milliseconds> timeout, bool wait_all_ranks) {
  c10d::BarrierOptions options;
  if (timeout) options.timeout = *timeout;
  backend.monitoredBarrier(options, wait_all_ranks);
}

c10::intrusive_ptr<c10d::Work> reduce_scatter_coded(Backend& backend, at::Tensor output,
                                                    at::Tensor input, const c10d::ReduceOp& op,
                                                    const std::string& format, bool async_op) {
  TORCH_CHECK_VALUE(format == "float16" || format == "bfloat16",
                    "taco: a reduce_scatter is coded as \"", format,
                    "\", but must be float16 or bfloat16");
  c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  options.asyncOp = async_op;
  return backend.reduce_scatter_coded(output, input, options, codec_named(format));
}

// The format in which plain all_reduces travel; "": as they are. True asks for what
// LIGHT_WIRE_DTYPE says.
std::string wire_format(const std::variant<bool, std::string>& asked) {
  const bool* is_flag = std::get_if<bool>(&asked);
  std::string format = is_flag ? "" : std::get<std::string>(asked);
  if (is_flag && *is_flag) {
    format = value_or_raise(Env::get()).light_wire_dtype;
    TORCH_CHECK_VALUE(
        format != "float32",
        "taco: Options(compress_all_reduce=True) asks for what LIGHT_WIRE_DTYPE says, "
        "which is float32: set it, or name float16 or bfloat16");
  }
  TORCH_CHECK_VALUE(format.empty() || format == "float16" || format == "bfloat16",
                    "taco: Options(compress_all_reduce=...) is \"", format,
                    "\", but must be float16, bfloat16, True or False");
  return format;
}

c10::intrusive_ptr<Backend::Options> copy_of(const Backend::Options& options) {
  return c10::make_intrusive<Backend::Options>(options);
}

}  // namespace

void bind_backend(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<Backend::Options, c10d::Backend::Options, c10::intrusive_ptr<Backend::Options>>(
      module, "Options", "pg_options of a taco group; copyable.")
      .def(py::init([](Milliseconds timeout, const std::string& algorithm,
                       const std::variant<bool, std::string>& compress_all_reduce) {
             // Here, where the program says it, and not once the rendezvous is over.
             raise_if_error(check_forced(algorithm).with_prefix("Options(algorithm=...): "));
             auto options = c10::make_intrusive<Backend::Options>(timeout);
             options->algorithm = algorithm;
             options->compress_all_reduce = wire_format(compress_all_reduce);
             return options;
           }),
           py::arg("timeout") = kBackendDefaultTimeout, py::arg("algorithm") = "",
           py::arg("compress_all_reduce") = "")
      .def_readonly("algorithm", &Backend::Options::algorithm)
      .def_readonly("compress_all_reduce", &Backend::Options::compress_all_reduce)
      .def("__copy__", &copy_of)
      .def("__deepcopy__",
           [](const Backend::Options& self, const py::dict&) { return copy_of(self); });
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(module, "ProcessGroupTaco")
      .def(py::init(&make_backend), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("options"), py::arg("timeout"), py::arg("group_name"), py::arg("global_ranks"),
           py::arg("enable_reconfigure") = false, NoGil())
      .def("monitored_barrier", &monitored_barrier, py::arg("timeout"), py::arg("wait_all_ranks"),
           NoGil())
      .def("reduce_scatter_coded", &reduce_scatter_coded, py::arg("output"), py::arg("input"),
           py::arg("op"), py::arg("format"), py::arg("async_op"), NoGil())
      // torch has the ranks that are not in a new group take part in the split that makes it, where
      // groups are bound to a device. Here only its members take part.
      .def("perform_nocolor_split", [](const Backend&, const py::object& /*device*/) {})
      .def_property_readonly("groups", &Backend::groups)
      .def(
          "dump", [](Backend& backend) { return backend.communicator()->dump(); }, NoGil())
      .def_property_readonly("options",
                             [](Backend& backend) {
                               return c10::static_intrusive_pointer_cast<Backend::Options>(
                                   backend.getBackendOptions());
                             })
      .def("get_error", &Backend::getError)
      .def_property_readonly("group_id",
                             [](Backend& backend) { return backend.communicator()->options().id; })
      .def_property_readonly("costs_hash", [](Backend& backend) {
        return backend.communicator()->options().costs.hash();
      });
  module.def("shut_down_all", &shut_down_all, NoGil());
}

}  // namespace taco::pg
