// From exceptions to Status: for code that calls torch and keeps to our convention.
#pragma once

#include <exception>

#include "base/status.h"

namespace taco {

// The status that an exception of ours (errors.h) was made of; for any other exception, a failure
// with its text and the code `other`. Any thread, no GIL needed. `error` must hold one.
Status status_of(const std::exception_ptr& error, Code other);

}  // namespace taco
