// One line format for the whole project: time, level, rank, component, text. TACO_LOG sets the
// level.
//   2026-01-31 12:00:00.123456 INFO rank 3 harp: session to 10.0.0.2:4123 established
#pragma once

#include <string_view>

namespace taco {

enum class LogLevel : unsigned char { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
LogLevel log_level();
void set_log_rank(int rank);  // -1: not known yet
// Lines go there from now on; null: to stderr.
void set_log_sink(void (*sink)(LogLevel level, std::string_view line));

// printf-style; one write() a line, so lines of different ranks never mix. Not for the data path.
void log(LogLevel level, const char* component, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

#define TACO_LOG_DEBUG(component, ...)                               \
  do {                                                               \
    if (::taco::log_level() <= ::taco::LogLevel::kDebug)             \
      ::taco::log(::taco::LogLevel::kDebug, component, __VA_ARGS__); \
  } while (false)
#define TACO_LOG_INFO(component, ...)                               \
  do {                                                              \
    if (::taco::log_level() <= ::taco::LogLevel::kInfo)             \
      ::taco::log(::taco::LogLevel::kInfo, component, __VA_ARGS__); \
  } while (false)
#define TACO_LOG_WARNING(component, ...) \
  ::taco::log(::taco::LogLevel::kWarning, component, __VA_ARGS__)
#define TACO_LOG_ERROR(component, ...) ::taco::log(::taco::LogLevel::kError, component, __VA_ARGS__)

}  // namespace taco
