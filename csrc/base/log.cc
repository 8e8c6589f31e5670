#include "base/log.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace taco {
namespace {

std::atomic<LogLevel> current_level{LogLevel::kInfo};
std::atomic<int> current_rank{-1};
std::atomic<void (*)(LogLevel, std::string_view)> current_sink{nullptr};

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
    case LogLevel::kOff:
      break;
  }
  return "OFF";
}

std::string prefix(LogLevel level, const char* component) {
  timeval now;
  gettimeofday(&now, nullptr);
  tm parts;
  localtime_r(&now.tv_sec, &parts);
  char date[32];
  strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &parts);
  const int rank = current_rank.load(std::memory_order_relaxed);
  char rank_text[16] = "-";
  if (rank >= 0) snprintf(rank_text, sizeof(rank_text), "%d", rank);
  char text[160];
  snprintf(text, sizeof(text), "%s.%06ld %s rank %s %.64s: ", date, static_cast<long>(now.tv_usec),
           name_of(level), rank_text, component);
  return text;
}

void append_formatted(std::string& line, const char* format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(nullptr, 0, format, arguments);
  if (length > 0) {
    const std::size_t start = line.size();
    line.resize(start + static_cast<std::size_t>(length) + 1);  // room for the terminator
    vsnprintf(line.data() + start, static_cast<std::size_t>(length) + 1, format, again);
    line.pop_back();
  }
  va_end(again);
}

}  // namespace

void set_log_level(LogLevel level) { current_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return current_level.load(std::memory_order_relaxed); }
void set_log_rank(int rank) { current_rank.store(rank, std::memory_order_relaxed); }
void set_log_sink(void (*sink)(LogLevel, std::string_view)) { current_sink.store(sink); }

void log(LogLevel level, const char* component, const char* format, ...) {
  if (level < log_level() || level == LogLevel::kOff) return;
  std::string line = prefix(level, component);
  va_list arguments;
  va_start(arguments, format);
  append_formatted(line, format, arguments);
  va_end(arguments);
  // A message of several lines would mix with other ranks' and break whoever reads by line.
  std::replace(line.begin(), line.end(), '\n', ' ');
  if (auto* sink = current_sink.load()) {
    sink(level, line);
    return;
  }
  line.push_back('\n');
  // A log that cannot be written has nobody to tell.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace taco
