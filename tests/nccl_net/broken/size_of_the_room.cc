// A receive gives the size of its memory instead of the message's.
#include <map>
#include <mutex>

#include "nccl_net/broken/sound.h"

using namespace harp::nccl::broken;

static std::mutex mutex;
static std::map<void*, std::size_t> rooms;

static Result irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles,
                    void** phandles, void** request) {
  const Result result = sound().irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
  std::lock_guard lock(mutex);
  if (*request != nullptr) rooms[*request] = sizes[0];
  return result;
}

static Result test(void* request, int* done, int* sizes) {
  const Result result = sound().test(request, done, sizes);
  std::lock_guard lock(mutex);
  const auto room = rooms.find(request);
  if (room != rooms.end() && *done != 0 && sizes != nullptr) {
    *sizes = static_cast<int>(room->second);
    rooms.erase(room);
  }
  return result;
}

BROKEN_PLUGIN(net) {
  net.irecv = irecv;
  net.test = test;
}
