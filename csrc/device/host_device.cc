#include "device/host_device.h"

#include <utility>

#include "base/log.h"
#include "device/host_stream.h"

namespace taco::device {
namespace {

class HostDevice : public Device {
 public:
  HostDevice(std::unique_ptr<HostMemory> memory, std::function<void()> before_each)
      : memory_(std::move(memory)), before_each_(std::move(before_each)) {}

  std::size_t frame_bytes() const override { return memory_->frame_bytes(); }
  Usage usage() const override { return memory_->usage(); }

  Result<std::byte*> reserve(std::size_t bytes) override { return memory_->reserve(bytes); }
  Status release(std::byte* range) override { return memory_->release(range); }
  Result<FrameId> create_frame() override { return memory_->create_frame(); }
  Status destroy_frame(FrameId frame) override { return memory_->destroy_frame(frame); }
  std::byte* home(FrameId frame) override { return memory_->home(frame); }
  Status map(std::byte* address, FrameId frame) override { return memory_->map(address, frame); }
  Result<FrameId> unmap(std::byte* address) override { return memory_->unmap(address); }

  Result<std::unique_ptr<Stream>> make_stream(const char* name) override {
    return HostStream::start(name, before_each_);
  }
  Result<std::unique_ptr<Event>> make_event() override {
    return std::unique_ptr<Event>(std::make_unique<HostEvent>());
  }

 private:
  const std::unique_ptr<HostMemory> memory_;
  const std::function<void()> before_each_;
};

}  // namespace

Result<std::unique_ptr<Device>> make_host_device(const HostOptions& options) {
  auto memory = HostMemory::create(options.memory);
  if (!memory.ok()) return memory.status();
  TACO_LOG_INFO("device", "the host as a device: up to %zu frames of %zu bytes, %s",
                options.memory.max_frames, options.memory.frame_bytes,
                (*memory)->moves() ? "moved by mremap" : "fresh at every mapping (no mremap here)");
  return std::unique_ptr<Device>(
      std::make_unique<HostDevice>(std::move(*memory), options.before_each));
}

}  // namespace taco::device
