// _C.zerocache: what taco_torch/zerocache is made of.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <cstdint>
#include <exception>

#include "edge/errors.h"
#include "edge/without_gil.h"
#include "zerocache/pages/checksum.h"
#include "zerocache/torch/bind.h"
#include "zerocache/torch/gradient_buffers.h"
#include "zerocache/torch/process_group.h"
#include "zerocache/torch/store.h"
#include "zerocache/torch/uses_bind.h"

namespace py = pybind11;

namespace taco::zerocache {
namespace {

// The constants of one step of an optimizer for a parameter.
struct Constants {
  StepConstants step;
};

StateKind kind_of(const std::string& name) {
  for (int i = 0; i < kStateKinds; ++i) {
    if (name_of(static_cast<StateKind>(i)) == name) return static_cast<StateKind>(i);
  }
  raise(Status(Code::kInvalidArgument, "no state is called '" + name + "'"));
}

std::vector<StateKind> kinds_of(const std::vector<std::string>& names) {
  std::vector<StateKind> kinds;
  kinds.reserve(names.size());
  for (const std::string& name : names) kinds.push_back(kind_of(name));
  return kinds;
}

IoOptions::Engine engine_of(const std::string& name) {
  if (name == "auto") return IoOptions::Engine::kAuto;
  if (name == "io_uring") return IoOptions::Engine::kUring;
  if (name == "threads") return IoOptions::Engine::kThreads;
  raise(Status(Code::kInvalidArgument,
               "io='" + name + "': choose \"auto\", \"io_uring\" or \"threads\""));
}

StoreOptions options_of(std::uint64_t device, std::uint64_t host,
                        const std::vector<std::pair<std::string, std::uint64_t>>& disk,
                        std::size_t page_bytes, unsigned threads, const std::string& io,
                        std::uint64_t io_bytes_per_second, bool poison) {
  StoreOptions options;
  options.device_bytes = device;
  options.host_bytes = host;
  for (const auto& [path, bytes] : disk) options.disk.push_back({path, bytes});
  options.page_bytes = page_bytes;
  options.threads = threads;
  options.io.engine = engine_of(io);
  options.io.bytes_per_second = io_bytes_per_second;
  options.poison = poison;
  return options;
}

py::dict stats_of(const Store& store) {
  const MoverStats stats = store.stats();
  py::dict found, tiers, ways;
  const char* const tier_names[kTiers] = {"device", "host", "ssd"};
  const char* const way_names[kWays] = {"host to device", "device to host", "ssd to host",
                                        "host to ssd"};
  for (int i = 0; i < kTiers; ++i) {
    const TierStats& tier = stats.tiers[static_cast<std::size_t>(i)];
    tiers[tier_names[i]] = py::dict(py::arg("capacity") = tier.capacity * store.page_bytes(),
                                    py::arg("resident") = tier.resident * store.page_bytes());
  }
  for (int i = 0; i < kWays; ++i) {
    const WayStats& way = stats.ways[static_cast<std::size_t>(i)];
    ways[way_names[i]] = py::dict(py::arg("copies") = way.copies, py::arg("failed") = way.failed,
                                  py::arg("bytes") = way.bytes,
                                  py::arg("busy_s") = static_cast<double>(way.busy) * 1e-9,
                                  py::arg("stalled_s") = static_cast<double>(way.stalled) * 1e-9,
                                  py::arg("bytes_per_second") = way.bytes_per_second);
  }
  found["tiers"] = tiers;
  found["ways"] = ways;
  found["hits"] = stats.hits;
  found["misses"] = stats.misses;
  found["uses"] = stats.uses;
  found["stalled_s"] = static_cast<double>(stats.stalled) * 1e-9;
  if (store.is_spread()) {
    const GatherStats gathers = store.gathers();
    found["gathers"] =
        py::dict(py::arg("stripes") = gathers.gathered, py::arg("ahead") = gathers.ahead,
                 py::arg("waited_s") = static_cast<double>(gathers.waited) * 1e-9);
  }
  return found;
}

// (name, bytes, bytes of an element, whether it is trained, whether it is moments of another)
using Planned = std::tuple<std::string, std::size_t, std::uint32_t, bool, bool>;

void check_room(Store& store, const std::vector<Planned>& parameters,
                const std::vector<std::string>& kinds,
                const std::vector<std::vector<std::uint32_t>>& needed, const std::string& gradients,
                int ranks, bool spread) {
  std::vector<PlannedParameter> planned;
  planned.reserve(parameters.size());
  for (const auto& [name, bytes, element_bytes, trained, moments] : parameters)
    planned.push_back({name, bytes, element_bytes, trained, moments});
  const FinalGradients final = gradients == "stepped" ? FinalGradients::kAreStepped
                               : gradients == "kept"  ? FinalGradients::kAreKeptOnPages
                                                      : FinalGradients::kStayInMemory;
  raise_if_error(store.check_room(planned, kinds_of(kinds), needed, final, ranks, spread));
}

using Steps = std::vector<std::tuple<at::Tensor, std::optional<at::Tensor>, const Constants*>>;

std::vector<Store::Step> steps_of(const Steps& steps) {
  std::vector<Store::Step> made;
  made.reserve(steps.size());
  for (const auto& [parameter, gradient, constants] : steps)
    made.push_back({parameter, gradient.value_or(at::Tensor()), constants->step});
  return made;
}

// (matrices, rows, columns), for Adafactor.
using Shape = std::tuple<std::size_t, std::size_t, std::size_t>;

kernels::AdafactorShape shape_of(const Shape& shape) {
  return {
      .matrices = std::get<0>(shape), .rows = std::get<1>(shape), .columns = std::get<2>(shape)};
}

void add_state(Store& store,
               const std::vector<std::pair<std::string, std::optional<Shape>>>& parameters,
               const std::vector<std::string>& kinds) {
  std::vector<Store::Stateful> stateful;
  for (const auto& [name, shape] : parameters) {
    stateful.push_back({name, std::nullopt});
    if (shape) stateful.back().moments = shape_of(*shape);
  }
  raise_if_error(store.add_state(stateful, kinds_of(kinds)));
}

// The note goes through Python, whose exception is the caller's, and a failure of all ranks.
void load(Store& store, const std::string& directory,
          const std::function<void(const py::bytes&)>& agree) {
  std::exception_ptr refused;
  const Status status = store.load(directory, [&](const std::string& note) {
    try {
      agree(py::bytes(note));
      return Status();
    } catch (py::error_already_set& error) {
      refused = std::current_exception();
      return Status(Code::kInvalidArgument, py::str(error.value()).cast<std::string>());
    }
  });
  if (refused) std::rethrow_exception(refused);
  raise_if_error(status);
}

// The raw pointer: how torch holds it is torch's own affair.
std::unique_ptr<Collectives> ranks_of(c10d::Backend* backend) {
  return collectives_of(c10::intrusive_ptr<c10d::Backend>::reclaim_copy(backend));
}

std::uint64_t digest_of_tensor(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  const std::size_t count = tensor.nbytes();
  const WithoutGil others_run;
  return digest({bytes, count});
}

void bind_steps(py::module_& module) {
  static_cast<void>(py::class_<Constants>(module, "StepConstants"));
  module.def(
      "adam_step",
      [](std::int64_t step, double factor, double lr, double beta1, double beta2, double eps,
         double weight_decay, bool decoupled) {
        const kernels::AdamOptions options{lr, beta1, beta2, eps, weight_decay, decoupled};
        raise_if_error(kernels::check(options));
        return Constants{kernels::adam_step(options, step, factor)};
      },
      py::arg("step"), py::arg("factor"), py::kw_only(), py::arg("lr"), py::arg("beta1"),
      py::arg("beta2"), py::arg("eps"), py::arg("weight_decay"), py::arg("decoupled"));
  module.def(
      "sgd_step",
      [](std::int64_t step, double factor, double lr, double momentum, double dampening,
         double weight_decay, bool nesterov) {
        const kernels::SgdOptions options{lr, momentum, dampening, weight_decay, nesterov};
        raise_if_error(kernels::check(options));
        return Constants{kernels::sgd_step(options, step, factor)};
      },
      py::arg("step"), py::arg("factor"), py::kw_only(), py::arg("lr"), py::arg("momentum"),
      py::arg("dampening"), py::arg("weight_decay"), py::arg("nesterov"));
  module.def(
      "lion_step",
      [](double factor, double lr, double beta1, double beta2, double weight_decay) {
        const kernels::LionOptions options{lr, beta1, beta2, weight_decay};
        raise_if_error(kernels::check(options));
        return Constants{kernels::lion_step(options, factor)};
      },
      py::arg("factor"), py::kw_only(), py::arg("lr"), py::arg("beta1"), py::arg("beta2"),
      py::arg("weight_decay"));
}

void bind_adafactor(py::module_& module) {
  module.def(
      "adafactor_step",
      [](std::int64_t step, double factor, const Shape& shape, bool bf16, double lr,
         double beta2_decay, double eps1, double eps2, double clip, double weight_decay) {
        const kernels::AdafactorOptions options{lr, beta2_decay, eps1, eps2, clip, weight_decay};
        raise_if_error(kernels::check(options));
        return Constants{kernels::adafactor_step(options, shape_of(shape), step, bf16, factor)};
      },
      py::arg("step"), py::arg("factor"), py::arg("shape"), py::arg("bf16"), py::kw_only(),
      py::arg("lr"), py::arg("beta2_decay"), py::arg("eps1"), py::arg("eps2"), py::arg("clip"),
      py::arg("weight_decay"));
}

void bind_made(py::class_<Store>& store) {
  store
      .def("make", [](Store& self, const std::string& what,
                      const at::Tensor& tensor) { raise_if_error(self.make(what, tensor)); })
      .def("holds", &Store::holds)
      .def("part_of", &Store::part_of)
      .def("part_of_operands", &Store::part_of_operands)
      .def("note_change", &Store::note_change)
      .def("say_why", &Store::say_why)
      .def("name_made",
           [](Store& self, const std::vector<std::pair<std::string, at::Tensor>>& names) {
             return value_or_raise(self.name_made(names));
           })
      .def(
          "give_back_unnamed",
          [](Store& self, const std::string& refusal) {
            const Status own = refusal.empty() ? Status() : Status(Code::kResource, refusal);
            raise_if_error(self.give_back_unnamed(own));
          },
          py::arg("refusal") = "")
      .def("make_spread",
           [](Store& self, c10d::Backend* backend) {
             raise_if_error(self.make_spread(ranks_of(backend)));
           })
      .def("end_making", [](Store& self) { raise_if_error(self.end_making()); });
}

void bind_runs(py::class_<Store>& store) {
  store
      .def("note_write",
           [](Store& self, const std::vector<std::string>& names) {
             raise_if_error(self.note_write(names));
           })
      .def_property_readonly("run", &Store::run)
      .def("begin_run", &Store::begin_run)
      .def("end_run", &Store::end_run);
}

void bind_gradients(py::class_<Store>& store) {
  store.def("keep_gradients", [](Store& self) { raise_if_error(self.keep_gradients()); })
      .def("keep_gradient",
           [](Store& self, const at::Tensor& parameter, const at::Tensor& gradient) {
             raise_if_error(self.keep_gradient(parameter, gradient));
           })
      .def("read_gradient",
           [](Store& self, const at::Tensor& parameter, const at::Tensor& to) {
             raise_if_error(self.read_gradient(parameter, to));
           })
      .def("drop_gradients", [](Store& self) { raise_if_error(self.drop_gradients()); });
}

void bind_spread(py::class_<Store>& store) {
  store
      .def("spread", [](Store& self,
                        c10d::Backend* backend) { raise_if_error(self.spread(ranks_of(backend))); })
      .def("start_gathering", [](Store& self) { raise_if_error(self.start_gathering()); })
      .def_property_readonly("is_spread", &Store::is_spread)
      .def("average_gradient",
           [](Store& self, const at::Tensor& parameter, const at::Tensor& gradient) {
             raise_if_error(self.average_gradient(parameter, gradient));
           })
      .def(
          "finish_gradients",
          [](Store& self, const std::string& failure) {
            raise_if_error(self.finish_gradients(failure));
          },
          py::arg("failure") = "")
      .def("gradient_norm",
           [](Store& self, double order) { return value_or_raise(self.gradient_norm(order)); })
      .def("end_forward", [](Store& self) { raise_if_error(self.end_forward()); })
      .def(
          "unscale_gradients",
          [](Store& self, double factor) { return value_or_raise(self.unscale_gradients(factor)); })
      .def("multiply_gradients",
           [](Store& self, double factor) { raise_if_error(self.multiply_gradients(factor)); })
      .def_property_readonly("gradients_lost", &Store::gradients_lost)
      .def("leave_run", &Store::leave_run)
      .def("sync_ranks", &Store::sync_ranks);
}

void bind_state(py::class_<Store>& store) {
  store.def("add_state", &add_state)
      .def("share", [](Store& self,
                       c10d::Backend* backend) { raise_if_error(self.share(ranks_of(backend))); })
      .def("step",
           [](Store& self, const Steps& steps) { raise_if_error(self.step(steps_of(steps))); })
      .def("agree_on_steps",
           [](Store& self, const Steps& steps) {
             raise_if_error(self.agree_on_steps(steps_of(steps)));
           })
      .def("refuse_step",
           [](Store& self, const std::string& reason) { raise_if_error(self.refuse_step(reason)); })
      .def("step_in_backward",
           [](Store& self, std::size_t points) { raise_if_error(self.step_in_backward(points)); })
      .def("step_early",
           [](Store& self, const at::Tensor& parameter, const at::Tensor& gradient,
              const Constants& constants) {
             raise_if_error(self.step_early({parameter, gradient, constants.step}));
           })
      .def("forget_when_used", &Store::forget_when_used)
      .def("share_final",
           [](Store& self, const std::vector<at::Tensor>& parameters) {
             raise_if_error(self.share_final(parameters));
           })
      .def("drop_steps", [](Store& self) { return value_or_raise(self.drop_steps()); })
      .def("stepped_early", &Store::stepped_early)
      .def("read_state",
           [](Store& self, const at::Tensor& parameter, const std::string& kind,
              const at::Tensor& to) { raise_if_error(self.read_state(parameter, kind, to)); })
      .def("write_state",
           [](Store& self, const at::Tensor& parameter, const std::string& kind,
              const at::Tensor& values) {
             raise_if_error(self.write_state(parameter, kind, values));
           })
      .def("save",
           [](Store& self, const std::string& directory, const py::bytes& note) {
             return value_or_raise(self.save(directory, static_cast<std::string>(note)));
           })
      .def("load", &load);
}

}  // namespace

void bind_store(py::module_& module) {
  py::module_ inner = module.attr("zerocache");
  bind_steps(inner);
  bind_adafactor(inner);
  py::class_<StoreOptions>(inner, "StoreOptions")
      .def(py::init(&options_of), py::arg("device"), py::arg("host"), py::arg("disk"),
           py::arg("page_bytes") = kPageBytes, py::arg("threads") = 1, py::arg("io") = "auto",
           py::arg("io_bytes_per_second") = 0, py::arg("poison") = false)
      .def_readonly("page_bytes", &StoreOptions::page_bytes);
  inner.def("check_placeable", [](const std::string& name, const at::Tensor& tensor) {
    raise_if_error(check_placeable(tensor, name));
  });
  inner.def("parameter_of_state", &parameter_of_state);
  inner.def("digest", &digest_of_tensor);
  inner.def("forget_bytes", &forget_bytes);
  inner.def("waits_here", &waits_here);
  py::class_<Store> store(inner, "Store");
  store
      .def(py::init(
          [](const StoreOptions& options) { return value_or_raise(Store::open(options)); }))
      .def("place", [](Store& self, const std::string& name,
                       const at::Tensor& tensor) { raise_if_error(self.place(name, tensor)); })
      .def("check_room", &check_room, py::arg("parameters"), py::arg("kinds"), py::arg("needed"),
           py::arg("gradients") = "in memory", py::arg("ranks") = 1, py::arg("spread") = false)
      .def("read", [](Store& self, const at::Tensor& tensor,
                      const at::Tensor& to) { raise_if_error(self.read(tensor, to)); })
      .def("write", [](Store& self, const at::Tensor& tensor,
                       const at::Tensor& values) { raise_if_error(self.write(tensor, values)); })
      .def(
          "close", [](Store& self, bool restore) { raise_if_error(self.close(restore)); },
          py::arg("restore") = true)
      .def_property_readonly("closed", &Store::closed)
      .def_property_readonly("parameter_bytes", &Store::parameter_bytes)
      .def_property_readonly("state_bytes", &Store::state_bytes)
      .def_property_readonly("own_parameter_bytes",
                             [](const Store& self) { return self.own_bytes(false); })
      .def_property_readonly("own_state_bytes",
                             [](const Store& self) { return self.own_bytes(true); })
      .def("stats", &stats_of);
  bind_uses(store);
  bind_made(store);
  bind_runs(store);
  bind_state(store);
  bind_gradients(store);
  bind_spread(store);
}

}  // namespace taco::zerocache
