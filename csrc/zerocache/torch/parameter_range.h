// Parameters in one reserved range of a host device, moved out and in by name when it is told to,
// or as parts of a model are used: the least that exercises storage.h and uses.h, with none of the
// cache's own pages, tiers and plans. Each storage has frames of its own, and its number stands for
// its pages; what was evicted waits in an anonymous file. For the tests that show what a parameter
// keeps while its bytes move.
//
// One thread at a time, that which runs the model. When this object goes, parameters that are
// present stay so, as torch holds the range; those that are absent cannot be fetched any more.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "zerocache/torch/storage.h"
#include "zerocache/torch/uses.h"

namespace taco::zerocache {

class ParameterRange : public Pager {
 public:
  struct Options {
    std::size_t frame_bytes = std::size_t{4} << 20;
    std::size_t max_frames = 0;
    std::size_t range_bytes = 0;
    bool poison = true;
  };

  static Result<std::unique_ptr<ParameterRange>> create(const Options& options);
  ~ParameterRange() override;
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

  // These parameters are needed at once; they are absent from now on unless they are in use.
  Result<Uses::Part> add_part(const std::vector<std::string>& names);
  Uses& uses() { return uses_; }
  // Evicts what is not in use to make room, but only then.
  Status begin(std::uint64_t key, std::span<const Run> pages) override;
  void end(std::uint64_t key, std::span<const Run> pages) override;

  Result<bool> present(const std::string& name) const;
  Result<std::uintptr_t> address(const std::string& name) const;
  device::Usage usage() const { return device_->usage(); }

 private:
  struct Entry {
    std::vector<std::string> names;
    std::unique_ptr<PlacedStorage> storage;
    std::uint32_t number = 0;
    std::size_t frames = 0;
    bool resident = true;    // its frames are mapped
    int pins = 0;            // uses under way
    bool announced = false;  // its uses are: it is in a part
    Uses::Parameter parameter = 0;
  };
  struct Reservation;

  ParameterRange(std::shared_ptr<device::Device> device, std::shared_ptr<Reservation> range,
                 std::unique_ptr<device::Stream> stream, int file);

  Result<Entry*> find(const std::string& name) const;
  Status own_process() const;
  void reclaim();
  Entry* numbered(std::uint32_t number) const;
  Status bring(Entry& entry);
  Status send_away(Entry& entry);
  bool make_room();
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
  std::uint32_t next_number_ = 0;
  std::vector<std::unique_ptr<Entry>> entries_;
  Uses uses_{*this};
};

}  // namespace taco::zerocache
