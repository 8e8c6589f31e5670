// Python's view of a Work and of its future: callbacks attached to the future run in the scope of
// their operation (callback_scope.h), on whichever thread they run. A future that is done already
// runs its callback at once, on the thread that attaches it.
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "pg/bind.h"
#include "pg/callback_scope.h"
#include "pg/work.h"

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

  py::function in_scope(py::function callback) const {
    return py::cpp_function([scope = scope, callback = std::move(callback)](py::object future) {
      const CallbackScope::Entry entry(scope.get());
      return callback(std::move(future));
    });
  }

  // The whole chain shares the scope: its callbacks run one after the other.
  std::shared_ptr<ScopedFuture> then_in_scope(py::function callback) {
    py::function scoped = in_scope(std::move(callback));
    py::gil_scoped_release no_gil;
    auto plain = std::make_shared<PythonFutureWrapper>(fut);
    return std::make_shared<ScopedFuture>(plain->then(std::move(scoped))->fut, scope);
  }

  void add_done_callback_in_scope(py::function callback) {
    py::function scoped = in_scope(std::move(callback));
    py::gil_scoped_release no_gil;
    std::make_shared<PythonFutureWrapper>(fut)->add_done_callback(std::move(scoped));
  }

  std::shared_ptr<CallbackScope> scope;
};

std::shared_ptr<ScopedFuture> future_of(Work& work) {
  return std::make_shared<ScopedFuture>(work.getFuture(), work.scope());
}

}  // namespace

void bind_future(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<ScopedFuture, torch::jit::PythonFutureWrapper, std::shared_ptr<ScopedFuture>>(module,
                                                                                           "Future")
      .def("then", &ScopedFuture::then_in_scope, py::arg("callback"))
      .def("add_done_callback", &ScopedFuture::add_done_callback_in_scope, py::arg("callback"));
  py::class_<Work, c10d::Work, c10::intrusive_ptr<Work>>(module, "Work")
      .def("get_future", &future_of, NoGil());
}

}  // namespace taco::pg
