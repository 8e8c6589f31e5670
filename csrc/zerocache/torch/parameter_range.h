// Parameters in one reserved range of a host device, moved out and in by name when they are told
// to: the least that exercises storage.h, with none of the cache's own pages, tiers and plans. Each
// storage has frames of its own; what was evicted waits in an anonymous file. For the tests that
// show what a parameter keeps while its bytes move.
//
// One thread at a time, that which runs the model. When this object goes, parameters that are
// present stay so, as torch holds the range; those that are absent cannot be fetched any more.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "zerocache/torch/storage.h"

namespace taco::zerocache {

class ParameterRange {
 public:
  struct Options {
    std::size_t frame_bytes = std::size_t{4} << 20;
    std::size_t max_frames = 0;
    std::size_t range_bytes = 0;
    bool poison = true;
  };

  static Result<std::unique_ptr<ParameterRange>> create(const Options& options);
  ~ParameterRange();
  ParameterRange(const ParameterRange&) = delete;
  ParameterRange& operator=(const ParameterRange&) = delete;

  // A tensor on a storage that is here already becomes another name of that.
  Status place(const std::string& name, const at::Tensor& tensor);
  Status evict(const std::string& name);
  Status fetch(const std::string& name);
  // Replaces the bytes of the whole storage, wherever they are, by those of `values`.
  Status write(const std::string& name, const at::Tensor& values);
  // Fetches it if need be, and gives it back to torch.
  Status restore(const std::string& name);

  Result<bool> present(const std::string& name) const;
  Result<std::uintptr_t> address(const std::string& name) const;
  device::Usage usage() const { return device_->usage(); }

 private:
  struct Entry {
    std::vector<std::string> names;
    std::unique_ptr<PlacedStorage> storage;
    std::size_t frames = 0;
  };
  struct Reservation;

  ParameterRange(std::shared_ptr<device::Device> device, std::shared_ptr<Reservation> range,
                 std::unique_ptr<device::Stream> stream, int file);

  Result<Entry*> find(const std::string& name) const;
  Status own_process() const;
  void reclaim();
  Status map_frames(std::byte* address, std::size_t frames);
  Status unmap_frames(std::byte* address, std::size_t frames);
  Status save(const PlacedStorage& storage);
  Status load(const PlacedStorage& storage);

  const pid_t process_;
  const std::shared_ptr<device::Device> device_;
  const std::shared_ptr<Reservation> range_;
  const std::unique_ptr<device::Stream> stream_;
  const int file_;  // holds what is absent, each byte at its offset in the range
  std::vector<std::byte> staging_;
  std::size_t used_ = 0;  // bytes of the range, from its start
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace taco::zerocache
