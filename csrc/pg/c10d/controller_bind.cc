// Controller and Submission as Python sees them: what Python says is checked, translated and handed
// to pg/controller/. The Python side of Horovod's interface (taco_torch/horovod) is what calls.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/heed.h"
#include "edge/errors.h"
#include "edge/signals.h"
#include "edge/without_gil.h"
#include "pg/c10d/backend.h"
#include "pg/c10d/backend_tensors.h"
#include "pg/c10d/bind.h"
#include "pg/c10d/controller_tensors.h"
#include "pg/c10d/generation.h"
#include "pg/controller/controller.h"
#include "pg/controller/response_runner.h"
#include "pg/controller/timeline.h"

namespace py = pybind11;

namespace taco::pg {
namespace {

using controller::Request;
using RequestKind = controller::Kind;
using TensorList = std::vector<at::Tensor>;
using Integers = std::vector<std::int64_t>;

constexpr int kGlobalSet = 0;

RequestKind kind_named(const std::string& name) {
  std::string known;
  for (int i = 0; i < controller::kKinds; ++i) {
    const auto kind = static_cast<RequestKind>(i);
    if (name == controller::name_of(kind)) return kind;
    known += (i == 0 ? "" : ", ") + std::string(controller::name_of(kind));
  }
  C10_THROW_ERROR(ValueError,
                  c10::str("taco: there is no operation \"", name, "\"; there are: ", known));
}

kernels::ReduceOp op_named(const std::string& name) {
  using kernels::ReduceOp;
  static constexpr std::array<std::pair<std::string_view, ReduceOp>, 5> kOps = {{
      {"sum", ReduceOp::kSum},
      {"average", ReduceOp::kAvg},
      {"min", ReduceOp::kMin},
      {"max", ReduceOp::kMax},
      {"product", ReduceOp::kProduct},
  }};
  for (const auto& [known, op] : kOps) {
    if (name == known) return op;
  }
  C10_THROW_ERROR(ValueError, c10::str("taco: there is no reduction \"", name,
                                       "\"; there are: sum, average, min, max, product"));
}

bool keeps_shapes(RequestKind kind) {
  return kind == RequestKind::kAllReduce || kind == RequestKind::kAdasum ||
         kind == RequestKind::kBroadcast;
}

// Throws ValueError where a failure is the caller's mistake, whatever it is about.
void raise_as_value_error(const Status& status) {
  TORCH_CHECK_VALUE(status.code() != Code::kUnsupported, "taco: ", status.message());
  raise_if_error(status);
}

kernels::Dtype dtype_of(RequestKind kind, c10::ScalarType type) {
  if (!controller::reduces(kind)) return movement_dtype(type);
  try {
    return reduction_dtype(type);
  } catch (const c10::TypeError& error) {
    C10_THROW_ERROR(ValueError, error.msg());
  }
}

void check_tensor(const at::Tensor& tensor, c10::ScalarType type, const std::string& of) {
  TORCH_CHECK_VALUE(tensor.defined(), "taco: ", of, " got no tensor");
  TORCH_CHECK_VALUE(tensor.device().is_cpu() && tensor.layout() == c10::kStrided, "taco: ", of,
                    " got a ", tensor.layout(), " tensor on ", tensor.device(),
                    "; named operations take dense CPU tensors");
  TORCH_CHECK_VALUE(tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(), "taco: ", of,
                    " got a tensor that is not contiguous: call contiguous() first");
  TORCH_CHECK_VALUE(tensor.scalar_type() == type, "taco: ", of,
                    " got tensors of different dtypes, ", type, " and ", tensor.scalar_type(),
                    ": a call takes tensors of one");
}

// The rest of what a submission asks for, beside its tensors.
struct SubmissionArguments {
  int process_set = kGlobalSet;
  std::string kind, name, op;
  int root = 0;
  double prescale = 1.0, postscale = 1.0;
  std::optional<Integers> splits, ranks;
};

class PythonSubmission {
 public:
  PythonSubmission(std::shared_ptr<controller::Submission> submission,
                   std::shared_ptr<ControllerTensors> tensors)
      : submission_(std::move(submission)), tensors_(std::move(tensors)) {}

  bool done() const { return submission_->done(); }
  // Without the GIL.
  void wait() const {
    (void)hear_signals_during([this] {
      return wait_and_heed(kNever, [this](Time until) { return submission_->wait_until(until); });
    });
    raise_if_error(submission_->outcome().status);
  }
  const controller::Outcome& outcome() const {
    TORCH_CHECK_VALUE(done(), "taco: the operation has not ended: call wait() first");
    return submission_->outcome();
  }
  TensorList outputs() const {
    return outcome().status.ok() && tensors_ != nullptr ? tensors_->outputs : TensorList();
  }

 private:
  const std::shared_ptr<controller::Submission> submission_;
  const std::shared_ptr<ControllerTensors> tensors_;  // null: it moves none
};

class PythonController {
 public:
  PythonController(c10::intrusive_ptr<Backend> backend, std::uint64_t fusion_bytes,
                   double cycle_seconds, std::size_t cache_slots, double stall_warning_seconds,
                   double stall_shutdown_seconds);
  ~PythonController() {
    if (is_copy()) return;
    const WithoutGil others_run;  // its thread may need the GIL to let go of a tensor
    controller_->shutdown();
    (void)end_timeline();
  }
  PythonController(const PythonController&) = delete;
  PythonController& operator=(const PythonController&) = delete;

  std::shared_ptr<PythonSubmission> submit(const SubmissionArguments& arguments, TensorList inputs,
                                           std::optional<TensorList> outputs);
  std::map<int, std::vector<int>> process_sets() const;
  void start_timeline(const std::string& path, bool mark_cycles);
  void stop_timeline() {
    check_is_here();
    raise_if_error(end_timeline());
  }
  void shutdown() {
    if (is_copy()) return;
    controller_->shutdown();
    stop_timeline();
  }

 private:
  // In a forked child, where nobody may wait for locks of the parent's threads.
  bool is_copy() const { return generation_ != fork_generation(); }
  void check_is_here() const {
    if (is_copy()) raise(controller::left_in_parent());
  }
  Status end_timeline();
  std::vector<int> ranks_of(const SubmissionArguments& arguments) const;
  // Looks `ranks` up, those of the process set.
  Request request_of(const SubmissionArguments& arguments, const TensorList& inputs,
                     std::vector<int>& ranks) const;
  void fill_splits(Request& request, const SubmissionArguments& arguments, int world) const;
  void check_outputs(const Request& request, const SubmissionArguments& arguments,
                     const std::vector<int>& ranks, const TensorList& inputs,
                     const TensorList& outputs) const;

  const std::uint32_t generation_ = fork_generation();
  const c10::intrusive_ptr<Backend> backend_;  // keeps the groups' transport
  const int rank_;
  std::unique_ptr<controller::Controller> controller_;
  std::mutex mutex_;  // guards what follows
  std::shared_ptr<controller::Timeline> timeline_;
};

Duration duration_named(const char* name, double seconds) {
  TORCH_CHECK_VALUE(seconds >= 0 && seconds < 1e9, "taco: ", name, " is ", seconds,
                    ", but must be from 0 to 1e9 seconds");
  return static_cast<Duration>(seconds * kSecond);
}

PythonController::PythonController(c10::intrusive_ptr<Backend> backend, std::uint64_t fusion_bytes,
                                   double cycle_seconds, std::size_t cache_slots,
                                   double stall_warning_seconds, double stall_shutdown_seconds)
    : backend_(std::move(backend)), rank_(backend_->getRank()) {
  const std::shared_ptr<Generation> generation = backend_->generation();
  controller::ControllerOptions options;
  options.rank = rank_;
  options.world = backend_->getSize();
  options.group = generation->options().id;
  options.fusion_bytes = fusion_bytes;
  options.cycle_time = duration_named("cycle_seconds", cycle_seconds);
  options.cache_slots = cache_slots;
  options.stall_warning = duration_named("stall_warning_seconds", stall_warning_seconds);
  options.stall_shutdown = duration_named("stall_shutdown_seconds", stall_shutdown_seconds);
  options.timeout = generation->options().timeout;
  controller_ = value_or_raise(controller::Controller::start(generation->nested(), options));
}

std::vector<int> PythonController::ranks_of(const SubmissionArguments& arguments) const {
  std::vector<int> ranks = value_or_raise(controller_->ranks_of(arguments.process_set));
  TORCH_CHECK_VALUE(!ranks.empty(), "taco: ", arguments.kind, " \"", arguments.name,
                    "\": process set ", arguments.process_set, " is not known");
  TORCH_CHECK_VALUE(std::ranges::binary_search(ranks, rank_), "taco: ", arguments.kind, " \"",
                    arguments.name, "\": rank ", rank_, " is not of process set ",
                    arguments.process_set);
  return ranks;
}

void PythonController::fill_splits(Request& request, const SubmissionArguments& arguments,
                                   int world) const {
  if (arguments.splits) {
    request.splits = *arguments.splits;
    return;
  }
  if (request.kind != RequestKind::kAllToAll || request.shapes.empty()) return;
  TORCH_CHECK_VALUE(!request.shapes[0].empty(), "taco: alltoall \"", request.name,
                    "\" got a tensor without dimensions");
  const std::int64_t rows = request.shapes[0][0];
  TORCH_CHECK_VALUE(rows % world == 0, "taco: alltoall \"", request.name,
                    "\": the first dimension, ", rows, ", is not divisible by the ", world,
                    " ranks of the process set; give splits");
  request.splits.assign(static_cast<std::size_t>(world), rows / world);
}

Request PythonController::request_of(const SubmissionArguments& arguments, const TensorList& inputs,
                                     std::vector<int>& ranks) const {
  Request request;
  request.kind = kind_named(arguments.kind);
  request.name = arguments.name;
  request.op = op_named(arguments.op);
  request.prescale = arguments.prescale;
  request.postscale = arguments.postscale;
  const std::string of = arguments.kind + " \"" + arguments.name + "\"";
  if (!inputs.empty()) {
    const c10::ScalarType type = inputs[0].scalar_type();
    for (const at::Tensor& tensor : inputs) {
      check_tensor(tensor, type, of);
      request.shapes.push_back(tensor.sizes().vec());
    }
    request.dtype = dtype_of(request.kind, type);
  }
  ranks = ranks_of(arguments);
  fill_splits(request, arguments, static_cast<int>(ranks.size()));
  if (arguments.ranks) request.ranks = *arguments.ranks;
  request.root = arguments.root;
  if (request.kind == RequestKind::kBroadcast) {
    const auto place = std::ranges::lower_bound(ranks, arguments.root);
    TORCH_CHECK_VALUE(place != ranks.end() && *place == arguments.root, "taco: ", of,
                      ": the root, rank ", arguments.root, ", is not of process set ",
                      arguments.process_set);
    request.root = static_cast<int>(place - ranks.begin());
  }
  return request;
}

// The memory must be what the operation will ask for.
void PythonController::check_outputs(const Request& request, const SubmissionArguments& arguments,
                                     const std::vector<int>& ranks, const TensorList& inputs,
                                     const TensorList& outputs) const {
  const std::string of = arguments.kind + " \"" + arguments.name + "\"";
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "taco: ", of, " got ", inputs.size(),
                    " inputs and ", outputs.size(), " outputs");
  TORCH_CHECK_VALUE(keeps_shapes(request.kind) || request.kind == RequestKind::kReduceScatter,
                    "taco: ", of, " makes its outputs itself: their sizes depend on other ranks");
  const auto place = std::ranges::lower_bound(ranks, rank_) - ranks.begin();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_tensor(outputs[i], inputs[i].scalar_type(), of);
    controller::Shape shape = request.shapes[i];
    if (request.kind == RequestKind::kReduceScatter && !shape.empty()) {
      shape[0] = controller::share_of_rows(shape[0], static_cast<int>(place),
                                           static_cast<int>(ranks.size()));
    }
    TORCH_CHECK_VALUE(outputs[i].sizes() == at::IntArrayRef(shape), "taco: ", of,
                      ": an output has the shape ", outputs[i].sizes(), ", but must have ",
                      at::IntArrayRef(shape));
  }
}

std::shared_ptr<PythonSubmission> PythonController::submit(const SubmissionArguments& arguments,
                                                           TensorList inputs,
                                                           std::optional<TensorList> outputs) {
  std::vector<int> ranks;
  Request request = request_of(arguments, inputs, ranks);
  if (outputs) check_outputs(request, arguments, ranks, inputs, *outputs);
  std::shared_ptr<ControllerTensors> tensors;
  std::shared_ptr<FixedTensors> fixed;
  if (!inputs.empty()) {
    tensors = std::make_shared<ControllerTensors>();
    tensors->inputs = std::move(inputs);
    if (outputs) tensors->outputs = std::move(*outputs);
    fixed = std::make_shared<FixedTensors>(tensors);
  }
  auto submission =
      controller_->submit(arguments.process_set, std::move(request), std::move(fixed));
  raise_as_value_error(submission.status());
  return std::make_shared<PythonSubmission>(std::move(submission).value(), std::move(tensors));
}

std::map<int, std::vector<int>> PythonController::process_sets() const {
  std::map<int, std::vector<int>> sets;
  for (const int id : value_or_raise(controller_->sets())) {
    std::vector<int> ranks = value_or_raise(controller_->ranks_of(id));
    if (!ranks.empty()) sets.emplace(id, std::move(ranks));  // not removed meanwhile
  }
  return sets;
}

void PythonController::start_timeline(const std::string& path, bool mark_cycles) {
  check_is_here();
  std::lock_guard lock(mutex_);
  TORCH_CHECK_VALUE(timeline_ == nullptr, "taco: a timeline is being written: stop it first");
  timeline_ = value_or_raise(controller::Timeline::start(path, mark_cycles));
  raise_if_error(controller_->set_listener(timeline_));
}

Status PythonController::end_timeline() {
  std::shared_ptr<controller::Timeline> timeline;
  {
    std::lock_guard lock(mutex_);
    timeline = std::exchange(timeline_, nullptr);
  }
  if (timeline == nullptr) return Status();
  const Status gone = controller_->set_listener(nullptr);
  const Status stopped = timeline->stop();
  return gone.ok() ? stopped : gone;
}

std::shared_ptr<PythonSubmission> submit_from_python(
    PythonController& self, int process_set, const std::string& kind, const std::string& name,
    TensorList inputs, std::optional<TensorList> outputs, const std::string& op, int root,
    double prescale, double postscale, std::optional<Integers> splits,
    std::optional<Integers> ranks) {
  return self.submit({.process_set = process_set,
                      .kind = kind,
                      .name = name,
                      .op = op,
                      .root = root,
                      .prescale = prescale,
                      .postscale = postscale,
                      .splits = std::move(splits),
                      .ranks = std::move(ranks)},
                     std::move(inputs), std::move(outputs));
}

}  // namespace

void bind_controller(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<PythonSubmission, std::shared_ptr<PythonSubmission>>(module, "Submission")
      .def("done", &PythonSubmission::done)
      .def("wait", &PythonSubmission::wait, NoGil())
      .def_property_readonly("outputs", &PythonSubmission::outputs)
      .def_property_readonly(
          "received_splits",
          [](const PythonSubmission& self) { return self.outcome().received_splits; })
      .def_property_readonly(
          "last_joined", [](const PythonSubmission& self) { return self.outcome().last_joined; })
      .def_property_readonly("process_set",
                             [](const PythonSubmission& self) { return self.outcome().set; });
  const controller::ControllerOptions defaults;
  py::class_<PythonController>(module, "Controller")
      .def(py::init<c10::intrusive_ptr<Backend>, std::uint64_t, double, std::size_t, double,
                    double>(),
           py::arg("backend"), py::kw_only(), py::arg("fusion_bytes") = defaults.fusion_bytes,
           py::arg("cycle_seconds") = 0.001, py::arg("cache_slots") = defaults.cache_slots,
           py::arg("stall_warning_seconds") = 60.0, py::arg("stall_shutdown_seconds") = 0.0,
           NoGil())
      .def("submit", &submit_from_python, py::arg("process_set"), py::arg("kind"), py::arg("name"),
           py::arg("inputs"), py::arg("outputs") = std::nullopt, py::kw_only(),
           py::arg("op") = "sum", py::arg("root") = 0, py::arg("prescale") = 1.0,
           py::arg("postscale") = 1.0, py::arg("splits") = std::nullopt,
           py::arg("ranks") = std::nullopt, NoGil())
      .def("process_sets", &PythonController::process_sets)
      .def("start_timeline", &PythonController::start_timeline, py::arg("path"),
           py::arg("mark_cycles"), NoGil())
      .def("stop_timeline", &PythonController::stop_timeline, NoGil())
      .def("shutdown", &PythonController::shutdown, NoGil());
}

}  // namespace taco::pg
