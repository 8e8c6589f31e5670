// _C.remote: endpoints, handles and transfers, for taco_torch/transport.py, which makes torch's
// interface of them.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/far_future.h"
#include "base/heed.h"
#include "edge/errors.h"
#include "edge/signals.h"
#include "edge/without_gil.h"
#include "remote/torch/bind.h"
#include "remote/torch/exposed.h"

namespace py = pybind11;

namespace taco::remote {
namespace {

Time deadline_of(std::optional<double> seconds) {
  if (!seconds) return kNever;
  return *seconds > 1e9 ? kNever
                        : later(monotonic_now(), static_cast<Duration>(*seconds * kSecond));
}

bool wait_for(Transfer& transfer, std::optional<double> seconds) {
  const Time deadline = deadline_of(seconds);
  Status status;
  {
    const WithoutGil others_run;
    (void)hear_signals_during([&] {
      return wait_and_heed(deadline, [&](Time until) {
        status = transfer.wait(until);
        return transfer.done() || status.code() != Code::kTimeout;
      });
    });
  }
  // One that ended just after its time has a status of its own.
  if (transfer.done()) status = transfer.wait(deadline);
  if (!transfer.done() && status.code() == Code::kTimeout) return false;
  raise_if_error(status);
  return true;
}

// The callback runs on a completion thread, with the GIL.
void call_when_done(Transfer& transfer, py::function callback) {
  // Dropped with the GIL, too, wherever that is.
  const auto kept =
      std::shared_ptr<py::function>(new py::function(std::move(callback)), [](py::function* last) {
        if (!Py_IsInitialized()) return;
        const py::gil_scoped_acquire gil;
        delete last;
      });
  Status kept_back;
  {
    const WithoutGil others_run;
    kept_back = transfer.on_complete([kept] {
      if (!Py_IsInitialized()) return;
      const py::gil_scoped_acquire gil;
      try {
        (*kept)();
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("a callback of a transfer");
      }
    });
  }
  raise_if_error(kept_back);
}

py::bytes bytes_of(const std::string& text) { return py::bytes(text); }

Handle part_of_handle(Handle handle, std::uint64_t offset, std::uint64_t bytes) {
  if (offset > handle.bytes || bytes > handle.bytes - offset) {
    raise(invalid(std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                  " exceed the remote buffer, which has " + std::to_string(handle.bytes)));
  }
  handle.offset += offset;
  handle.bytes = bytes;
  return handle;
}

using NoGil = py::call_guard<py::gil_scoped_release>;

void bind_values(py::module_& module) {
  py::class_<Handle>(module, "Handle")
      .def_static("decode",
                  [](const std::string& bytes) { return value_or_raise(decode_handle(bytes)); })
      .def("encode", [](const Handle& handle) { return bytes_of(encode(handle)); })
      .def("part", &part_of_handle, py::arg("offset"), py::arg("bytes"))
      .def_readonly("bytes", &Handle::bytes);
  py::class_<ExposedTensor, ExposedTensorPtr>(module, "Memory")
      .def_readonly("bytes", &ExposedTensor::bytes)
      .def_readonly("handle", &ExposedTensor::handle)
      .def_property_readonly(
          "registered", [](const ExposedTensor& exposed) { return exposed.is_registered.load(); });
  py::class_<Transfer, TransferPtr>(module, "Transfer")
      .def("done", &Transfer::done)
      .def("wait", &wait_for, py::arg("seconds"))
      .def("on_done", &call_when_done, py::arg("callback"));
}

}  // namespace

void bind_transport(py::module_& root) {
  py::module_ module = root.def_submodule("remote", "Memory of other processes.");
  bind_values(module);
  py::class_<TensorEndpoint, std::shared_ptr<TensorEndpoint>>(module, "Endpoint")
      .def(py::init([] { return value_or_raise(TensorEndpoint::open()); }), NoGil())
      .def("address",
           [](const TensorEndpoint& endpoint) {
             std::string address;
             {
               const WithoutGil others_run;
               address = endpoint.address();
             }
             return bytes_of(address);
           })
      .def(
          "connect",
          [](TensorEndpoint& endpoint, const std::string& peer) {
            raise_if_error(endpoint.connect(peer));
          },
          NoGil(), py::arg("peer"))
      .def("drop", &TensorEndpoint::drop, NoGil())
      .def("connected", &TensorEndpoint::connected, NoGil())
      .def("describe_peer", &TensorEndpoint::describe_peer, NoGil())
      .def(
          "add",
          [](TensorEndpoint& endpoint, const at::Tensor& tensor) {
            return value_or_raise(endpoint.add(tensor));
          },
          NoGil(), py::arg("tensor"))
      .def(
          "remove",
          [](TensorEndpoint& endpoint, const ExposedTensorPtr& memory,
             std::optional<double> seconds) {
            raise_if_error(endpoint.remove(memory, deadline_of(seconds)));
          },
          NoGil(), py::arg("memory"), py::arg("seconds"))
      .def(
          "start",
          [](TensorEndpoint& endpoint, bool writes, const ExposedTensorPtr& local,
             std::uint64_t offset, std::uint64_t bytes, const Handle& remote) {
            return value_or_raise(endpoint.start(writes ? Action::kWrite : Action::kRead, local,
                                                 offset, bytes, remote));
          },
          NoGil(), py::arg("writes"), py::arg("local"), py::arg("offset"), py::arg("bytes"),
          py::arg("remote"))
      .def(
          "close",
          [](TensorEndpoint& endpoint, std::optional<double> seconds) {
            raise_if_error(endpoint.close(deadline_of(seconds)));
          },
          NoGil(), py::arg("seconds"));
}

}  // namespace taco::remote
