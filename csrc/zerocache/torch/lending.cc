// Operators of torch that are given a parameter which is absent. Hooks of modules announce most of
// what a model reads, but not a child's weight that its parent reads, a weight that a module has
// returned, or what a hook of a gradient looks at. torch tells observers of each operator before it
// runs, and when it has ended: who lends parameters (lending.py) has them present in between.
// Likewise of operators that are given a parameter which another thread has present, and could let
// go of while they run.
//
// Any thread, with the GIL or without. Operators that are given no such parameter pay for a look at
// their arguments, and only while there is a cache.
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "zerocache/torch/bind.h"
#include "zerocache/torch/storage.h"

namespace py = pybind11;

namespace taco::zerocache {
namespace {

// The functions of Python that lend. Never destroyed: operators may run after the interpreter has
// ended.
struct Lenders {
  py::object lend, take_back;
  at::CallbackHandle handle = 0;
  std::size_t users = 0;
};

Lenders& lenders() {
  static auto* const only = new Lenders;
  return *only;
}

// This thread is asking already; what that does is not looked at.
thread_local bool is_asking = false;

class Asking {
 public:
  Asking() { is_asking = true; }
  ~Asking() { is_asking = false; }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
};

struct Loan : at::ObserverContext {
  py::object lent;
};

using Test = bool (*)(const at::Tensor&);

void add_those(Test test, const c10::IValue& value, std::vector<at::Tensor>& found) {
  if (value.isTensor()) {
    if (test(value.toTensor())) found.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const c10::IValue& each : value.toListRef()) add_those(test, each, found);
  } else if (value.isList() && !value.isIntList() && !value.isDoubleList()) {
    for (const c10::IValue& each : value.toListRef()) add_those(test, each, found);
  }
}

// Those of its arguments, and of what these hold, that pass the test.
std::vector<at::Tensor> arguments(const at::RecordFunction& function, Test test) {
  std::vector<at::Tensor> found;
  for (const c10::IValue& value : function.inputs()) add_those(test, value, found);
  return found;
}

// Whether it may read more of a parameter than what it is given: a function of autograd's that the
// program has written has no schema, and a library's operator may be written in Python.
bool may_read_more(const at::RecordFunction& function) {
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  return !schema || !schema->name().starts_with("aten::");
}

// Whether it returns other views of what it is given, and reads no element.
bool only_views(const at::RecordFunction& function) {
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  if (!schema || schema->returns().empty()) return false;
  const auto writes = [](const c10::Argument& each) {
    return each.alias_info() != nullptr && each.alias_info()->isWrite();
  };
  for (const c10::Argument& each : schema->arguments()) {
    if (writes(each)) return false;
  }
  for (const c10::Argument& each : schema->returns()) {
    if (each.alias_info() == nullptr || writes(each)) return false;
  }
  return true;
}

std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& function) {
  if (is_asking) return nullptr;
  const std::vector<at::Tensor> wanted = arguments(function, &is_not_here);
  if (wanted.empty() || only_views(function)) return nullptr;
  const Asking asking;
  const py::gil_scoped_acquire gil;
  auto loan = std::make_unique<Loan>();
  try {
    loan->lent = lenders().lend(wanted, arguments(function, &is_placed), may_read_more(function));
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("lending a parameter to an operator");
  }
  if (!loan->lent || loan->lent.is_none()) {
    loan->lent = py::object();
    return nullptr;
  }
  return loan;
}

void after(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  const Asking asking;
  const py::gil_scoped_acquire gil;
  const py::object lent = std::move(static_cast<Loan*>(context)->lent);
  try {
    lenders().take_back(lent);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("taking back a parameter from an operator");
  }
}

// One more cache has parameters to lend.
void begin_lending(const py::object& lend, const py::object& take_back) {
  Lenders& all = lenders();
  if (all.handle == 0) {
    all.lend = lend;
    all.take_back = take_back;
    all.handle = at::addGlobalCallback(at::RecordFunctionCallback(&before, &after)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
  } else if (all.users == 0) {
    at::reenableCallback(all.handle);
  }
  ++all.users;
}

void end_lending() {
  Lenders& all = lenders();
  if (--all.users == 0) at::disableCallback(all.handle);
}

}  // namespace

void bind_lending(py::module_& module) {
  py::module_ inner = module.attr("zerocache");
  inner.def("begin_lending", &begin_lending, py::arg("lend"), py::arg("take_back"));
  inner.def("end_lending", &end_lending);
  inner.def("is_absent", &is_absent);
}

}  // namespace taco::zerocache
