#include <errno.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/arena.h"
#include "harp/api/registered_memory.h"
#include "harp/harp.h"

namespace harp {
namespace {

// Newer than some systems' headers: since Linux 5.14.
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE

// By hand where the kernel cannot, whose answer to a lack of memory is the end of the process.
bool bring_in(const taco::Arena& arena) {
  if (madvise(arena.data(), arena.size(), kPopulateWrite) == 0) return true;
  if (errno != EINVAL) return false;
  std::memset(arena.data(), 0, arena.size());
  return true;
}

}  // namespace

struct Memory::State {
  taco::Arena arena;
};

Memory::Memory(std::unique_ptr<State> state) : state_(std::move(state)) {}
Memory::Memory(Memory&&) noexcept = default;
Memory& Memory::operator=(Memory&&) noexcept = default;
Memory::~Memory() = default;

Result<Memory> Memory::allocate(std::size_t bytes) {
  auto arena = taco::Arena::create("harp-memory", bytes, taco::Arena::Sharing::kPrivate);
  if (!arena.ok()) return arena.status();
  if (!bring_in(arena.value())) {
    return Status(Code::kResource, "the host has no " + std::to_string(arena.value().size()) +
                                       " bytes of memory: " + std::strerror(errno));
  }
  auto state = std::make_unique<State>();
  state->arena = std::move(arena).value();
  return Memory(std::move(state));
}

std::byte* Memory::data() const { return state_->arena.data(); }
std::size_t Memory::size() const { return state_->arena.size(); }

struct Registration::State {
  RegisteredMemory::Kept range;
};

Registration::Registration(std::unique_ptr<State> state) : state_(std::move(state)) {}
Registration::Registration(Registration&&) noexcept = default;
Registration& Registration::operator=(Registration&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Registration::~Registration() {
  if (state_ != nullptr && state_->range != nullptr) registered_memory().forget(state_->range);
}

Result<Registration> Registration::of(void* data, std::size_t bytes) {
  auto range = registered_memory().add(data, bytes);
  if (!range.ok()) return range.status();
  auto state = std::make_unique<State>();
  state->range = std::move(range).value();
  return Registration(std::move(state));
}

Status Registration::end() {
  if (state_ == nullptr || state_->range == nullptr) return {};
  return registered_memory().remove(state_->range);
}

}  // namespace harp
