// Implements errors.h and status_of.h, and registers the translator behind them.
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <string>

#include "edge/bind.h"
#include "edge/errors.h"
#include "edge/status_of.h"

namespace py = pybind11;

namespace taco {
namespace {

const char* python_name(Code code) {
  switch (code) {
    case Code::kMismatch:
      return "MismatchError";
    case Code::kPeerLost:
      return "PeerLostError";
    case Code::kTimeout:
      return "CollectiveTimeoutError";
    case Code::kAborted:
      return "AbortedError";
    case Code::kRendezvous:
      return "RendezvousError";
    case Code::kVersionMismatch:
      return "VersionMismatchError";
    default:
      return "TacoError";
  }
}

// torch's conformance tests, and users' scripts, look for " Timed out " in a timeout's text.
std::string text_of(const Status& status) {
  if (status.code() != Code::kTimeout) return status.message();
  const std::string& text = status.message();
  for (const char* word : {" Timed out ", " timeout ", " closed "}) {
    if (text.find(word) != std::string::npos) return text;
  }
  return "taco: Timed out : " + text;
}

// torch translates a PyTorchError wherever it leaves torch, by PyErr_SetString(python_type(),
// text).
class TacoError : public torch::PyTorchError {
 public:
  explicit TacoError(Status status) : PyTorchError(text_of(status)), status_(std::move(status)) {}

  // With the GIL; returns a borrowed reference. torch passes on nothing but a type and a text, so a
  // lost peer's attributes travel in a type made for this one error, which makes a PeerLostError.
  PyObject* python_type() override {
    const py::module_ errors = py::module_::import("taco_torch.errors");
    py::object type = errors.attr(python_name(status_.code()));
    if (const PeerLoss* loss = status_.peer_loss()) {
      type = errors.attr("loss_of")(loss->rank, loss->address, loss->last_heard_s);
    }
    static PyObject* last = nullptr;
    Py_XDECREF(last);
    last = type.release().ptr();
    return last;
  }

  const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace

void raise(const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument:
      throw c10::ValueError(status.message(), nullptr);
    case Code::kUnsupported:
      throw c10::TypeError(status.message(), nullptr);
    default:
      throw TacoError(status);
  }
}

std::exception_ptr exception_of(const Status& status) {
  try {
    raise(status);
  } catch (...) {
    return std::current_exception();
  }
}

Status status_of(const std::exception_ptr& error, Code other) {
  try {
    std::rethrow_exception(error);
  } catch (const TacoError& ours) {
    return ours.status();
  } catch (const c10::Error& of_torch) {
    return Status(other, of_torch.what_without_backtrace());
  } catch (const std::exception& any) {
    return Status(other, any.what());
  } catch (...) {
    return Status(other, "an exception of an unknown type");
  }
}

void bind_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (TacoError& failure) {
      PyErr_SetString(failure.python_type(), failure.what());
    }
  });
}

}  // namespace taco
