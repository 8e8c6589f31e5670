#include "zerocache/torch/parameter_range.h"

#include <ATen/core/Tensor.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/fork.h"
#include "device/host_device.h"

namespace taco::zerocache {
namespace {

std::string quoted(const std::string& name) { return "parameter '" + name + "'"; }

Status file_failure(const char* what, ssize_t result) {
  return Status(Code::kResource, std::string(what) + " evicted bytes failed: " +
                                     (result < 0 ? strerror(errno) : "the file ends too early"));
}

// A transfer that was done in part is continued.
template <class Transfer>
Status transfer_all(const char* what, std::size_t bytes, Transfer transfer) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t result = transfer(done, bytes - done);
    if (result < 0 && errno == EINTR) continue;
    if (result <= 0) return file_failure(what, result);
    done += static_cast<std::size_t>(result);
  }
  return Status();
}

}  // namespace

// The range and the device with its memory, for as long as torch points there.
struct ParameterRange::Reservation {
  std::shared_ptr<device::Device> device;
  std::byte* begin;
  std::size_t bytes;
  ~Reservation() { static_cast<void>(device->release(begin)); }
};

Result<std::unique_ptr<ParameterRange>> ParameterRange::create(const Options& options) {
  device::HostOptions host;
  host.memory.frame_bytes = options.frame_bytes;
  host.memory.max_frames = options.max_frames;
  host.memory.poison = options.poison;
  auto made = make_host_device(host);
  if (!made.ok()) return made.status();
  std::shared_ptr<device::Device> device = std::move(*made);
  auto begin = device->reserve(options.range_bytes);
  if (!begin.ok()) return begin.status();
  std::shared_ptr<Reservation> range(new Reservation{device, *begin, options.range_bytes});
  auto stream = device->make_stream("taco-range");
  if (!stream.ok()) return stream.status();
  const int file = memfd_create("taco-evicted", MFD_CLOEXEC);
  if (file < 0) return Status(Code::kResource, std::string("memfd_create: ") + strerror(errno));
  close_on_fork(file);
  return std::unique_ptr<ParameterRange>(
      new ParameterRange(std::move(device), std::move(range), std::move(*stream), file));
}

ParameterRange::ParameterRange(std::shared_ptr<device::Device> device,
                               std::shared_ptr<Reservation> range,
                               std::unique_ptr<device::Stream> stream, int file)
    : process_(getpid()),
      device_(std::move(device)),
      range_(std::move(range)),
      stream_(std::move(stream)),
      file_(file),
      staging_(device_->frame_bytes()) {}

ParameterRange::~ParameterRange() {
  for (const auto& entry : entries_) {
    if (entry->resident) {
      entry->storage->set_present();
    } else {
      entry->storage->set_absent("the cache that had moved its bytes away is gone");
    }
  }
  if (getpid() == process_) close_now(file_);
}

Status ParameterRange::own_process() const {
  if (getpid() == process_) return Status();
  return invalid("this process was forked: it cannot move the parameters of process " +
                 std::to_string(process_));
}

Result<ParameterRange::Entry*> ParameterRange::find(const std::string& name) const {
  TACO_RETURN_IF_ERROR(own_process());
  for (const auto& entry : entries_) {
    if (std::find(entry->names.begin(), entry->names.end(), name) == entry->names.end()) continue;
    TACO_RETURN_IF_ERROR(entry->storage->check());
    return entry.get();
  }
  return invalid("there is no " + quoted(name) + " here");
}

// Frees the frames of storages that torch has freed.
void ParameterRange::reclaim() {
  std::erase_if(entries_, [&](const std::unique_ptr<Entry>& entry) {
    if (entry->storage->alive() || entry->announced) return false;
    if (entry->resident) static_cast<void>(unmap_frames(entry->storage->address(), entry->frames));
    return true;
  });
}

Status ParameterRange::map_frames(std::byte* address, std::size_t frames) {
  const std::size_t bytes = device_->frame_bytes();
  for (std::size_t i = 0; i < frames; ++i) {
    auto frame = device_->create_frame();
    Status status = frame.status();
    if (status.ok()) {
      status = device_->map(address + i * bytes, *frame);
      if (!status.ok()) static_cast<void>(device_->destroy_frame(*frame));
    }
    if (!status.ok()) {
      static_cast<void>(unmap_frames(address, i));
      return status;
    }
  }
  return Status();
}

Status ParameterRange::unmap_frames(std::byte* address, std::size_t frames) {
  for (std::size_t i = 0; i < frames; ++i) {
    auto frame = device_->unmap(address + i * device_->frame_bytes());
    if (!frame.ok()) return frame.status();
    TACO_RETURN_IF_ERROR(device_->destroy_frame(*frame));
  }
  return Status();
}

Status ParameterRange::place(const std::string& name, const at::Tensor& tensor) {
  TACO_RETURN_IF_ERROR(own_process());
  reclaim();
  for (const auto& entry : entries_) {
    if (std::find(entry->names.begin(), entry->names.end(), name) != entry->names.end())
      return invalid(quoted(name) + " is here already");
  }
  for (const auto& entry : entries_) {
    if (!entry->storage->holds(tensor)) continue;
    entry->storage->add(tensor, name);
    entry->names.push_back(name);
    return Status();
  }
  TACO_RETURN_IF_ERROR(can_be_placed(tensor, name));
  const std::size_t bytes = tensor.storage().nbytes(), frame = device_->frame_bytes();
  auto entry = std::make_unique<Entry>();
  entry->names.push_back(name);
  entry->number = next_number_++;
  entry->frames = (bytes + frame - 1) / frame;
  if (entry->frames * frame > range_->bytes - used_) {
    return Status(Code::kResource, quoted(name) + " of " + std::to_string(bytes) +
                                       " bytes does not fit into what is left of the range, " +
                                       std::to_string(range_->bytes - used_) + " bytes");
  }
  std::byte* address = range_->begin + used_;
  if (Status status = map_frames(address, entry->frames); !status.ok())
    return status.with_prefix(quoted(name) + ": ");
  auto placed = PlacedStorage::place(tensor, name, address, range_);
  if (!placed.ok()) {
    static_cast<void>(unmap_frames(address, entry->frames));
    return placed.status();
  }
  used_ += entry->frames * frame;
  entry->storage = std::move(*placed);
  entries_.push_back(std::move(entry));
  return Status();
}

// Copies from the range into the file, a frame at a time.
Status ParameterRange::save(const PlacedStorage& storage) {
  for (std::size_t at = 0; at < storage.bytes(); at += staging_.size()) {
    const std::size_t bytes = std::min(staging_.size(), storage.bytes() - at);
    std::byte* from = storage.address() + at;
    stream_->copy(staging_.data(), from, bytes);
    stream_->synchronize();
    const off_t offset = from - range_->begin;
    TACO_RETURN_IF_ERROR(transfer_all("writing", bytes, [&](std::size_t done, std::size_t left) {
      return pwrite(file_, staging_.data() + done, left, offset + static_cast<off_t>(done));
    }));
  }
  return Status();
}

Status ParameterRange::load(const PlacedStorage& storage) {
  for (std::size_t at = 0; at < storage.bytes(); at += staging_.size()) {
    const std::size_t bytes = std::min(staging_.size(), storage.bytes() - at);
    std::byte* to = storage.address() + at;
    const off_t offset = to - range_->begin;
    TACO_RETURN_IF_ERROR(transfer_all("reading", bytes, [&](std::size_t done, std::size_t left) {
      return pread(file_, staging_.data() + done, left, offset + static_cast<off_t>(done));
    }));
    stream_->copy(to, staging_.data(), bytes);
    stream_->synchronize();
  }
  return Status();
}

Status ParameterRange::send_away(Entry& entry) {
  if (!entry.resident) return Status();
  TACO_RETURN_IF_ERROR(save(*entry.storage));
  entry.resident = false;
  return unmap_frames(entry.storage->address(), entry.frames);
}

// False if all that is resident is in use.
bool ParameterRange::make_room() {
  for (const auto& entry : entries_) {
    if (entry->resident && entry->announced && entry->pins == 0) return send_away(*entry).ok();
  }
  return false;
}

Status ParameterRange::bring(Entry& entry) {
  if (entry.resident) return Status();
  const PlacedStorage& storage = *entry.storage;
  Status status = map_frames(storage.address(), entry.frames);
  while (!status.ok() && make_room()) status = map_frames(storage.address(), entry.frames);
  if (status.ok()) {
    status = load(storage);
    if (!status.ok()) static_cast<void>(unmap_frames(storage.address(), entry.frames));
  }
  if (!status.ok()) return status.with_prefix(storage.described() + ": ");
  entry.resident = true;
  return Status();
}

Status ParameterRange::evict(const std::string& name) {
  auto found = find(name);
  if (!found.ok()) return found.status();
  Entry& entry = **found;
  if (entry.pins > 0) return invalid(entry.storage->described() + " is in use");
  if (entry.storage->present()) entry.storage->set_absent();
  return send_away(entry);
}

Status ParameterRange::fetch(const std::string& name) {
  auto found = find(name);
  if (!found.ok()) return found.status();
  TACO_RETURN_IF_ERROR(bring(**found));
  if (!(*found)->storage->present()) (*found)->storage->set_present();
  return Status();
}

Result<Uses::Part> ParameterRange::add_part(const std::vector<std::string>& names) {
  std::vector<Uses::Parameter> parameters;
  for (const std::string& name : names) {
    auto found = find(name);
    if (!found.ok()) return found.status();
    Entry& entry = **found;
    if (!entry.announced) entry.parameter = uses_.add(*entry.storage, {entry.number, 1});
    entry.announced = true;
    parameters.push_back(entry.parameter);
  }
  return uses_.add_part(std::move(parameters));
}

ParameterRange::Entry* ParameterRange::numbered(std::uint32_t number) const {
  for (const auto& entry : entries_) {
    if (entry->number == number) return entry.get();
  }
  return nullptr;
}

Status ParameterRange::begin(std::uint64_t key, std::span<const Run> pages) {
  TACO_RETURN_IF_ERROR(own_process());
  // All are pinned before any is brought, so that none of them makes room for another.
  for (const Run& run : pages) ++numbered(run.first)->pins;
  for (const Run& run : pages) {
    if (Status status = bring(*numbered(run.first)); !status.ok()) {
      end(key, pages);
      return status;
    }
  }
  return Status();
}

void ParameterRange::end(std::uint64_t, std::span<const Run> pages) {
  for (const Run& run : pages) --numbered(run.first)->pins;
}

Status ParameterRange::write(const std::string& name, const at::Tensor& values) {
  auto found = find(name);
  if (!found.ok()) return found.status();
  PlacedStorage& storage = *(*found)->storage;
  if (!values.is_contiguous() || values.nbytes() != storage.bytes()) {
    return invalid(storage.described() + " has " + std::to_string(storage.bytes()) +
                   " bytes of storage; " + std::to_string(values.nbytes()) +
                   " contiguous ones must be given, not " +
                   (values.is_contiguous() ? "these" : "scattered ones"));
  }
  storage.note_write();
  const auto* from = static_cast<const std::byte*>(values.const_data_ptr());
  if ((*found)->resident) {
    stream_->copy(storage.address(), from, storage.bytes());
    stream_->synchronize();
    return Status();
  }
  const off_t offset = storage.address() - range_->begin;
  return transfer_all("writing", storage.bytes(), [&](std::size_t done, std::size_t left) {
    return pwrite(file_, from + done, left, offset + static_cast<off_t>(done));
  });
}

Status ParameterRange::restore(const std::string& name) {
  auto found = find(name);
  if (!found.ok()) return found.status();
  Entry* entry = *found;
  if (entry->announced) return invalid(entry->storage->described() + " is in a part of a model");
  TACO_RETURN_IF_ERROR(fetch(name));
  TACO_RETURN_IF_ERROR(entry->storage->restore());
  Status status = unmap_frames(entry->storage->address(), entry->frames);
  std::erase_if(entries_, [&](const std::unique_ptr<Entry>& held) { return held.get() == entry; });
  return status;
}

Result<bool> ParameterRange::present(const std::string& name) const {
  auto found = find(name);
  if (!found.ok()) return found.status();
  return (*found)->storage->present();
}

Result<std::uintptr_t> ParameterRange::address(const std::string& name) const {
  auto found = find(name);
  if (!found.ok()) return found.status();
  return reinterpret_cast<std::uintptr_t>((*found)->storage->address());
}

}  // namespace taco::zerocache
