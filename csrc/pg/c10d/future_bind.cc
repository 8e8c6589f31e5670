// Python's view of a Work and of its future: callbacks attached to the future run in the scope of
// their own (callback_scope.h), on whichever thread they run. A future that is done already runs
// its callback at once, on the thread that attaches it; else a completion thread does (relay.h).
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "pg/c10d/bind.h"
#include "pg/c10d/callback_scope.h"
#include "pg/c10d/relay.h"
#include "pg/c10d/work.h"

namespace py = pybind11;

namespace taco::pg {
namespace {

using torch::jit::PythonFutureWrapper;

// The second base hides the first one's shared_from_this() from pybind11, which would look for it
// by a dynamic_cast that this type does not allow. Nothing here calls it: callbacks are attached
// through a wrapper of the plain type.
struct VISIBILITY_HIDDEN ScopedFuture : PythonFutureWrapper,
                                        std::enable_shared_from_this<ScopedFuture> {
  ScopedFuture(c10::intrusive_ptr<c10::ivalue::Future> future, std::shared_ptr<CallbackScope> scope)
      : PythonFutureWrapper(std::move(future)), scope(std::move(scope)) {}

  static py::function in_scope(std::shared_ptr<CallbackScope> scope, py::function callback) {
    return py::cpp_function(
        [scope = std::move(scope), callback = std::move(callback)](py::object future) {
          const CallbackScope::Entry entry(scope.get());
          return callback(std::move(future));
        });
  }

  std::shared_ptr<CallbackScope> next_scope() const { return scope ? scope->child() : nullptr; }

  // The future that a callback is attached to. With the GIL, which guards relay_.
  std::shared_ptr<PythonFutureWrapper> attachable() {
    if (fut->completed()) return std::make_shared<PythonFutureWrapper>(fut);
    if (!relay_) relay_ = make_relay(*fut);
    return std::make_shared<PythonFutureWrapper>(relay_);
  }

  std::shared_ptr<ScopedFuture> then_in_scope(py::function callback) {
    std::shared_ptr<CallbackScope> next = next_scope();
    py::function scoped = in_scope(next, std::move(callback));
    const auto plain = attachable();
    py::gil_scoped_release no_gil;
    return std::make_shared<ScopedFuture>(plain->then(std::move(scoped))->fut, std::move(next));
  }

  void add_done_callback_in_scope(py::function callback) {
    py::function scoped = in_scope(next_scope(), std::move(callback));
    const auto plain = attachable();
    py::gil_scoped_release no_gil;
    plain->add_done_callback(std::move(scoped));
  }

  std::shared_ptr<CallbackScope> scope;

 private:
  c10::intrusive_ptr<c10::ivalue::Future> relay_;  // made for the first callback that must wait
};

std::shared_ptr<ScopedFuture> future_of(Work& work) {
  return std::make_shared<ScopedFuture>(work.getFuture(), work.scope());
}

std::shared_ptr<ScopedFuture> outcome_of(Work& work) {
  return std::make_shared<ScopedFuture>(work.getFutureResult(), nullptr);
}

// `combined` waits for all of `futures`, of which some belong to collectives.
py::object join_scopes(const std::shared_ptr<PythonFutureWrapper>& combined,
                       const py::sequence& futures) {
  std::vector<std::shared_ptr<CallbackScope>> scopes;
  bool any = false;
  for (const py::handle future : futures) {
    if (!py::isinstance<ScopedFuture>(future)) continue;
    any = true;
    if (auto scope = future.cast<std::shared_ptr<ScopedFuture>>()->scope) scopes.push_back(scope);
  }
  if (!any) return py::cast(combined);
  auto scope = scopes.empty() ? nullptr : CallbackScope::join(scopes);
  return py::cast(std::make_shared<ScopedFuture>(combined->fut, std::move(scope)));
}

}  // namespace

void bind_future(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<ScopedFuture, torch::jit::PythonFutureWrapper, std::shared_ptr<ScopedFuture>>(module,
                                                                                           "Future")
      .def("then", &ScopedFuture::then_in_scope, py::arg("callback"))
      .def("add_done_callback", &ScopedFuture::add_done_callback_in_scope, py::arg("callback"));
  module.def("join_scopes", &join_scopes, py::arg("combined"), py::arg("futures"));
  py::class_<Work, c10d::Work, c10::intrusive_ptr<Work>>(module, "Work")
      .def("get_future", &future_of, NoGil())
      .def("get_future_result", &outcome_of, NoGil());
}

}  // namespace taco::pg
