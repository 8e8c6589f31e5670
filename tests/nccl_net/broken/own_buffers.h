// Receives by way of a buffer of the plugin's own, for faults in how the message gets from there to
// where it belongs.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "nccl_net/broken/sound.h"

namespace harp::nccl::broken {

struct OwnBuffer {
  std::unique_ptr<std::byte[]> bytes;
  std::byte* data;
  std::size_t room;
};

inline std::mutex buffers_mutex;
inline std::map<void*, OwnBuffer> buffers;  // by request

inline Result receive_into_own(void* comm, int n, void** data, std::size_t* sizes, int* tags,
                               void**, void** phandles, void** request) {
  constexpr std::size_t kEnough = 8 << 20;
  OwnBuffer own{std::make_unique_for_overwrite<std::byte[]>(kEnough),
                static_cast<std::byte*>(data[0]), sizes[0]};
  void* into = own.bytes.get();
  std::size_t bytes = kEnough;
  const Result result = sound().irecv(comm, n, &into, &bytes, tags, nullptr, phandles, request);
  std::lock_guard lock(buffers_mutex);
  if (*request != nullptr) buffers.emplace(*request, std::move(own));
  return result;
}

// The buffer of a receive that is done; nothing: it is another request, or not done.
inline std::vector<OwnBuffer> test_own(void* request, int* done, int* sizes, Result* result) {
  std::vector<OwnBuffer> found;
  *result = sound().test(request, done, sizes);
  std::lock_guard lock(buffers_mutex);
  const auto own = buffers.find(request);
  if (*done == 0 || own == buffers.end()) return found;
  found.push_back(std::move(own->second));
  buffers.erase(own);
  return found;
}

}  // namespace harp::nccl::broken
