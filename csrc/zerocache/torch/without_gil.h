// Lets other threads of Python run for as long as it lives. A thread that holds no GIL keeps none.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace taco::zerocache {

class WithoutGil {
 public:
  WithoutGil() {
    if (PyGILState_Check() != 0) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace taco::zerocache
