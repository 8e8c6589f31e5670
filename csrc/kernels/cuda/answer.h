// How the functions of kernels/cuda/taco_cuda.h say how it went.
#pragma once

#include <string>

#include "base/status.h"

namespace taco::kernels::cuda {

// Null where all is well; else the text, which is this thread's until its next call.
inline const char* answer(const Status& status) {
  static thread_local std::string text;
  if (status.ok()) return nullptr;
  text = status.message();
  return text.c_str();
}

}  // namespace taco::kernels::cuda
