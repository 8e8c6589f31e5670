#include "base/assert.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"

namespace taco {
namespace {

// The last words of a process are logged at every level of the log.
void prepare_log() {
  set_log_level(LogLevel::kError);
  set_log_sink(nullptr);
}

}  // namespace

void assertion_failed(const char* condition, const char* file, int line) {
  prepare_log();
  TACO_LOG_ERROR("assert", "%s:%d: assertion failed: %s", file, line, condition);
  std::abort();
}

void assertion_failed(const char* condition, const char* file, int line, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  prepare_log();
  TACO_LOG_ERROR("assert", "%s:%d: assertion failed: %s: %s", file, line, condition, text);
  std::abort();
}

}  // namespace taco
