// The C++ part of taco_torch.lightcc: settings, the hook of one model, residuals by parameter.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "base/env.h"
#include "base/log.h"
#include "edge/errors.h"
#include "pg/c10d/bind.h"
#include "pg/c10d/bucket_arrangement.h"
#include "pg/c10d/ddp_hook.h"
#include "pg/c10d/gradient_watch.h"
#include "pg/codecs/coding_stats.h"

namespace py = pybind11;

namespace taco::pg {
namespace {

using lightcc::Settings;
using NoGil = py::call_guard<py::gil_scoped_release>;
using HookPtr = std::shared_ptr<GradientHook>;
// from, elements, layout, residual, momentum
using SavedBucket =
    std::tuple<std::uint64_t, std::uint64_t, std::vector<int>, at::Tensor, at::Tensor>;

Settings make_settings(const std::string& compression, double ratio, std::int64_t threshold,
                       const std::string& values, std::int64_t warm_up_steps, double momentum,
                       const std::string& small, bool may_top_k) {
  Settings settings;
  settings.compression = value_or_raise(lightcc::compression_named(compression));
  settings.small = value_or_raise(lightcc::compression_named(small));
  TORCH_CHECK_VALUE(values == "float32" || values == "float16", "taco: values is \"", values,
                    "\", but must be float32 or float16");
  settings.f16_values = values == "float16";
  settings.ratio = ratio;
  settings.threshold = threshold;
  settings.warm_up_steps = warm_up_steps;
  settings.momentum = momentum;
  settings.may_top_k = may_top_k;
  raise_if_error(lightcc::check(settings));
  return settings;
}

// The callable lives and dies with the GIL; at the very end of the process nobody can free it.
GradientHook::Scale scale_of(py::object callable) {
  if (callable.is_none()) return {};
  std::shared_ptr<py::object> held(new py::object(std::move(callable)), [](py::object* object) {
    if (Py_IsInitialized()) {
      py::gil_scoped_acquire gil;
      delete object;
    } else {
      object->release();
      delete object;
    }
  });
  return [held] {
    py::gil_scoped_acquire gil;
    return (*held)().cast<double>();
  };
}

HookPtr make_hook(const c10::intrusive_ptr<Backend>& backend,
                  const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                  const Settings& settings, py::object scale) {
  GradientHook::Scale asked = scale_of(std::move(scale));
  py::gil_scoped_release no_gil;
  return GradientHook::create(backend, parameters, settings, std::move(asked));
}

void change(GradientHook& hook, const Settings& settings, py::object scale) {
  GradientHook::Scale asked = scale_of(std::move(scale));
  py::gil_scoped_release no_gil;
  hook.change(settings, std::move(asked));
}

at::Tensor tensor_of(const std::vector<float>& values) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor;
}

std::span<const float> values_of(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kFloat && tensor.is_contiguous(),
                   "taco: residuals are contiguous float32 tensors, got ", tensor.scalar_type());
  return {tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

std::vector<SavedBucket> save(GradientHook& hook) {
  std::vector<SavedBucket> all;
  for (const lightcc::Saved& saved : hook.gradients().save()) {
    all.emplace_back(saved.part.from, saved.part.elements, saved.layout, tensor_of(saved.residual),
                     tensor_of(saved.momentum));
  }
  return all;
}

void load(GradientHook& hook, const std::vector<SavedBucket>& buckets, std::int64_t step) {
  std::vector<lightcc::Saved> all;
  for (const auto& [from, elements, layout, residual, momentum] : buckets) {
    const std::span<const float> kept = values_of(residual), velocity = values_of(momentum);
    all.push_back({.layout = layout,
                   .part = {from, elements},
                   .residual = {kept.begin(), kept.end()},
                   .momentum = {velocity.begin(), velocity.end()}});
  }
  raise_if_error(hook.gradients().load(std::move(all), step));
}

// The settings for gradients that LIGHT_* variables make.
py::dict light_environment() {
  constexpr std::int64_t kAutomaticFusion = 25 << 20;  // as DDP's buckets
  const Env env = value_or_raise(Env::get());
  py::dict out;
  out["topk"] = env.light_topk;
  out["ratio"] = env.light_topk_ratio;
  out["threshold"] = env.light_topk_threshold;
  out["values"] = env.light_topk_fp16 ? "float16" : "float32";
  out["wire_dtype"] = env.light_wire_dtype;
  out["fusion_bytes"] = env.light_fusion_bytes < 0 ? kAutomaticFusion : env.light_fusion_bytes;
  out["auto"] = env.light_auto;
  out["compresses"] = env.light_topk || env.light_wire_dtype != "float32";
  return out;
}

py::dict stats() {
  const CodingStats coding = coding_stats();
  py::dict out;
  out["bytes_before"] = coding.bytes_before;
  out["bytes_after"] = coding.bytes_after;
  out["encode_seconds"] = coding.encode_seconds;
  out["decode_seconds"] = coding.decode_seconds;
  py::gil_scoped_release no_gil;
  const double norm = residual_norm_of_all();
  py::gil_scoped_acquire gil;
  out["residual_norm"] = norm;
  out["chosen"] = py::tuple(py::cast(chosen_by_all()));
  return out;
}

// Calls by which optimizers, scalers and programs tell what has become of gradients
// (taco_torch/lightcc/ledger.py).
void bind_fates(py::class_<GradientHook, HookPtr>& hook) {
  using lightcc::Fate;
  const auto decide = [&](const char* name, Fate fate) {
    hook.def(
        name,
        [fate](GradientHook& self, const std::vector<int>& parameters) {
          self.gradients().decide(parameters, fate);
        },
        py::arg("parameters"), NoGil());
  };
  decide("used", Fate::kUsed);
  decide("skipped", Fate::kSkipped);
  decide("dropped", Fate::kDropped);
  hook.def("announce", &GradientHook::announce, py::arg("flag"), py::arg("work"), NoGil())
      .def("to_catch_up", &GradientHook::to_catch_up, py::arg("is_last"), NoGil())
      .def("catch_up", &GradientHook::catch_up, py::arg("known"), NoGil())
      .def(
          "tell_of",
          [](GradientHook& self, const std::vector<int>& parameters) {
            self.gradients().tell_of(parameters);
          },
          py::arg("parameters"), NoGil())
      .def(
          "forget_untrained",
          [](GradientHook& self, const std::vector<int>& parameters) {
            self.gradients().forget_untrained(parameters);
          },
          py::arg("parameters"), NoGil())
      .def("put_aside", &GradientHook::put_aside, py::arg("parameters"), NoGil())
      .def(
          "is_undecided",
          [](GradientHook& self, const std::vector<int>& parameters) {
            return self.gradients().is_undecided(parameters);
          },
          py::arg("parameters"), NoGil())
      .def(
          "scaled_by",
          [](GradientHook& self, py::object scale) {
            GradientHook::Scale asked = scale_of(std::move(scale));
            py::gil_scoped_release no_gil;
            self.scaled_by(std::move(asked));
          },
          py::arg("scale"));
}

// The arguments of make_settings(), for pickle.
py::tuple arguments_of(const Settings& settings) {
  return py::make_tuple(lightcc::name_of(settings.compression), settings.ratio, settings.threshold,
                        settings.f16_values ? "float16" : "float32", settings.warm_up_steps,
                        settings.momentum, lightcc::name_of(settings.small), settings.may_top_k);
}

Settings made_of(const py::tuple& arguments) {
  return make_settings(arguments[0].cast<std::string>(), arguments[1].cast<double>(),
                       arguments[2].cast<std::int64_t>(), arguments[3].cast<std::string>(),
                       arguments[4].cast<std::int64_t>(), arguments[5].cast<double>(),
                       arguments[6].cast<std::string>(), arguments[7].cast<bool>());
}

void bind_settings(py::module_& module) {
  py::class_<Settings>(module, "GradientSettings", "How gradients are compressed. Constant.")
      .def(py::init(&make_settings), py::arg("compression"), py::arg("ratio") = 0.01,
           py::arg("threshold") = 1 << 20, py::arg("values") = "float32",
           py::arg("warm_up_steps") = 0, py::arg("momentum") = 0.0, py::arg("small") = "none",
           py::arg("may_top_k") = false)
      .def_property_readonly(
          "compression",
          [](const Settings& self) { return std::string(lightcc::name_of(self.compression)); })
      .def_property_readonly(
          "small", [](const Settings& self) { return std::string(lightcc::name_of(self.small)); })
      .def_readonly("momentum", &Settings::momentum)
      .def("__eq__", [](const Settings& self, const Settings& other) { return self == other; })
      .def("__deepcopy__", [](const Settings& self, const py::dict&) { return self; })
      .def(py::pickle(&arguments_of, &made_of))
      .def("__str__", [](const Settings& self) { return lightcc::describe(self); });
}

void bind_hook(py::module_& module) {
  py::class_<GradientHook, HookPtr> hook(module, "GradientHook");
  bind_fates(hook);
  hook.def(py::init(&make_hook), py::arg("backend"), py::arg("parameters"), py::arg("settings"),
           py::arg("scale"))
      .def(
          "attach",
          [](const HookPtr& self, const std::shared_ptr<c10d::Reducer>& reducer,
             const std::vector<at::Tensor>& order,
             bool may_be_unused) { self->attach(reducer, order, may_be_unused); },
          py::arg("reducer"), py::arg("order"), py::arg("may_be_unused"), NoGil())
      .def("average", &GradientHook::average, py::arg("index"), py::arg("layout"),
           py::arg("buffer"), NoGil())
      .def("average_exactly", &GradientHook::average_exactly, py::arg("buffer"), NoGil())
      .def("end_pass", &GradientHook::end_pass, NoGil())
      .def("begin_step", &GradientHook::begin_step, NoGil())
      .def("arm", &GradientHook::arm, py::arg("index"), py::arg("layout"), py::arg("whole"),
           NoGil())
      .def("disarm", &GradientHook::disarm, NoGil())
      .def("change", &change, py::arg("settings"), py::arg("scale"))
      .def("move", &GradientHook::move, py::arg("backend"), NoGil())
      .def(
          "owed",
          [](GradientHook& self, std::size_t first, std::size_t last, bool as_saved) {
            return tensor_of(self.gradients().owed(first, last, as_saved));
          },
          py::arg("first"), py::arg("last"), py::arg("as_saved") = false, NoGil())
      .def(
          "forget",
          [](GradientHook& self, std::size_t first, std::size_t last) {
            self.gradients().forget(first, last);
          },
          py::arg("first"), py::arg("last"), NoGil())
      .def("save", &save, NoGil())
      .def("load", &load, py::arg("buckets"), py::arg("step"), NoGil())
      .def(
          "add_average",
          [](GradientHook& self, std::size_t parameter, const at::Tensor& average) {
            raise_if_error(self.gradients().add_average(parameter, values_of(average)));
          },
          py::arg("parameter"), py::arg("average"), NoGil())
      .def_property_readonly("settings",
                             [](GradientHook& self) { return self.gradients().settings(); })
      .def_property_readonly("step", [](GradientHook& self) { return self.gradients().step(); })
      .def_property_readonly("scale", [](GradientHook& self) { return self.gradients().scale(); })
      .def_property_readonly("groups", &GradientHook::groups)
      .def_property_readonly("chosen", &GradientHook::chosen);
}

}  // namespace

void bind_lightcc(py::module_& module) {
  bind_settings(module);
  bind_hook(module);
  module.def("is_zero_everywhere", &is_zero_everywhere, py::arg("tensor"), NoGil());
  module.def("arrangement_of", &arrangement_of, py::arg("reducer"), NoGil());
  module.def("arrange", &arrange, py::arg("reducer"), py::arg("arrangement"), NoGil());
  module.def("lightcc_environment", &light_environment);
  module.def("lightcc_stats", &stats);
  module.def(
      "log_info",
      [](const std::string& component, const std::string& text) {
        TACO_LOG_INFO(component.c_str(), "%s", text.c_str());
      },
      py::arg("component"), py::arg("text"));
}

}  // namespace taco::pg
