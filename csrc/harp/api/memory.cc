#include <errno.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/arena.h"
#include "base/fork.h"
#include "base/populate.h"
#include "harp/api/ends_unless_copied.h"
#include "harp/api/registered_memory.h"
#include "harp/harp.h"

namespace harp {
namespace {

// By hand where the kernel cannot, whose answer to a lack of memory is the end of the process.
bool bring_in(const taco::Arena& arena) {
  if (madvise(arena.data(), arena.size(), taco::kPopulateWrite) == 0) return true;
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

struct Registration::State : EndsUnlessCopied<Registration::State> {
  explicit State(RegisteredMemory::Kept registered) : range(std::move(registered)) {}
  ~State() {
    if (range != nullptr) registered_memory().forget(range);
  }
  RegisteredMemory::Kept range;  // null: it has ended
};

Registration::Registration(std::unique_ptr<State> state) : state_(std::move(state)) {}
Registration::Registration(Registration&&) noexcept = default;
Registration& Registration::operator=(Registration&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Registration::~Registration() = default;

Result<Registration> Registration::of(void* data, std::size_t bytes) {
  auto range = registered_memory().add(data, bytes);
  if (!range.ok()) return range.status();
  return Registration(std::make_unique<State>(std::move(range).value()));
}

Status Registration::end() {
  if (state_ == nullptr || state_->range == nullptr) return {};
  if (state_->generation != taco::fork_generation()) return {};  // the child's table has it not
  return registered_memory().remove(state_->range);
}

}  // namespace harp
