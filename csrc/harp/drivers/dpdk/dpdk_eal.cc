// EAL's start, what it has to say, and the library's one symbol.
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_version.h>
#include <stdio.h>
#include <sys/types.h>

#include <mutex>
#include <string>
#include <vector>

#include "harp/drivers/dpdk/dpdk_library.h"
#include "harp/drivers/dpdk/dpdk_port.h"

namespace taco::harp {

namespace {

// EAL tells why it fails by its log alone, so its last lines are kept for the error.
class EalLog {
 public:
  void begin(void (*tell)(const char* line)) {
    const cookie_io_functions_t functions{.write = write_line};
    FILE* const stream = fopencookie(this, "w", functions);
    if (stream == nullptr) return;
    tell_ = tell;
    setlinebuf(stream);
    rte_openlog_stream(stream);
  }

  std::string last() {
    std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  static constexpr std::size_t kKept = 400;

  // Every memif device regrets that no other process of DPDK's can share it, which none is to.
  static bool is_noise(const std::string& line) {
    return line.find("register mp action callback") != std::string::npos;
  }

  static ssize_t write_line(void* cookie, const char* text, std::size_t bytes) {
    auto& self = *static_cast<EalLog*>(cookie);
    std::string line(text, bytes);
    while (!line.empty() && line.back() == '\n') line.pop_back();
    if (line.empty() || is_noise(line)) return static_cast<ssize_t>(bytes);
    self.tell_(line.c_str());
    std::lock_guard lock(self.mutex_);
    self.last_ += (self.last_.empty() ? "" : "; ") + line;
    if (self.last_.size() > kKept) self.last_.erase(0, self.last_.size() - kKept);
    return static_cast<ssize_t>(bytes);
  }

  void (*tell_)(const char* line) = nullptr;
  std::mutex mutex_;
  std::string last_;  // guarded by mutex_
};

// Never destroyed: EAL's threads log until the process ends.
EalLog& eal_log() {
  static auto* const log = new EalLog;
  return *log;
}

Status start(const std::vector<std::string>& arguments, void (*log)(const char* line)) {
  eal_log().begin(log);
  // EAL writes into the list, and keeps the texts.
  static std::vector<std::string> kept;
  kept = arguments;
  std::vector<char*> list;
  list.reserve(kept.size() + 1);
  for (std::string& argument : kept) list.push_back(argument.data());
  list.push_back(nullptr);
  if (rte_eal_init(static_cast<int>(kept.size()), list.data()) >= 0) return {};
  return Status(Code::kResource, std::string("EAL did not start: ") + rte_strerror(rte_errno) +
                                     " (" + eal_log().last() + ")");
}

}  // namespace

std::string last_words_of_eal() { return eal_log().last(); }

}  // namespace taco::harp

extern "C" __attribute__((visibility("default"))) const taco::harp::DpdkLibrary* taco_harp_dpdk() {
  using taco::harp::DpdkLibrary;
  static const DpdkLibrary library{DpdkLibrary::kVersion, rte_version, taco::harp::start,
                                   taco::harp::open_dpdk_port};
  return &library;
}
