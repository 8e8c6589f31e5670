#include "ext/nccl/logging.h"

#include <atomic>
#include <string_view>

#include "base/log.h"

namespace harp::nccl {
namespace {

using taco::Code;

std::atomic<abi::Logger> the_logger{nullptr};

// A line of a subsystem that NCCL does not show by default would be missed by who needs it most.
void say(abi::LogLevel level, const std::string& text) {
  const unsigned long about =
      level == abi::kLogWarn ? abi::kLogEverything : abi::kLogInit | abi::kLogNet;
  if (const abi::Logger logger = the_logger.load()) {
    logger(level, about, "NET/HARP", 0, "NET/HARP : %s", text.c_str());
  }
}

void pass_on(taco::LogLevel level, std::string_view line) {
  say(level >= taco::LogLevel::kWarning ? abi::kLogWarn : abi::kLogInfo, std::string(line));
}

abi::Result result_of(Code code) {
  switch (code) {
    case Code::kOk:
      return abi::kSuccess;
    case Code::kInvalidArgument:
      return abi::kInvalidArgument;
    case Code::kUnsupported:
    case Code::kMismatch:
    case Code::kVersionMismatch:
      return abi::kInvalidUsage;
    case Code::kPeerLost:
    case Code::kRendezvous:
    case Code::kTimeout:
      return abi::kRemoteError;
    case Code::kResource:
      return abi::kSystemError;
    case Code::kAborted:
    case Code::kInternal:
      break;
  }
  return abi::kInternalError;
}

}  // namespace

void log_by(abi::Logger logger) {
  the_logger.store(logger);
  taco::set_log_sink(logger == nullptr ? nullptr : pass_on);
}

void log_info(const std::string& text) { say(abi::kLogInfo, text); }
void log_warning(const std::string& text) { say(abi::kLogWarn, text); }

abi::Result fail(const char* call, const taco::Status& why) {
  log_warning(std::string(call) + ": " + why.message());
  return result_of(why.code());
}

}  // namespace harp::nccl
