// A send is called done as soon as it is asked about, while it is still being read.
#include <iterator>
#include <map>
#include <mutex>
#include <set>

#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static std::mutex mutex;
static std::map<void*, std::size_t> fresh;  // nobody has asked about them
static std::set<void*> behind;              // said to be done, and not done

static void go_on() {
  for (auto each = behind.begin(); each != behind.end();) {
    int done = 0;
    sound().test(*each, &done, nullptr);
    each = done != 0 ? behind.erase(each) : std::next(each);
  }
}

static Result isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void* phandle,
                    void** request) {
  std::lock_guard lock(mutex);
  go_on();
  const Result result = sound().isend(comm, data, size, tag, mhandle, phandle, request);
  if (*request != nullptr) fresh.emplace(*request, size);
  return result;
}

static Result test(void* request, int* done, int* sizes) {
  std::lock_guard lock(mutex);
  go_on();
  const auto send = fresh.find(request);
  if (send == fresh.end()) return sound().test(request, done, sizes);
  *done = 1;
  if (sizes != nullptr) *sizes = static_cast<int>(send->second);
  behind.insert(request);
  fresh.erase(send);
  return harp::nccl::abi::kSuccess;
}

BROKEN_PLUGIN(net) {
  net.isend = isend;
  net.test = test;
}
