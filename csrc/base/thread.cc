#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include <string>
#include <system_error>
#include <utility>

namespace taco {

Result<std::thread> start_thread(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  int error = 0;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& failure) {
    error = failure.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return Status(Code::kResource, std::string("no thread ") + name + ": " + strerror(error));
  }
  pthread_setname_np(thread.native_handle(), std::string(name).substr(0, 15).c_str());
  return thread;
}

}  // namespace taco
