#include "zerocache/disk/slab.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/pages/checksum.h"

namespace taco::zerocache {
namespace {

const std::string kPrefix = "taco-zerocache-";
const std::string kSuffix = ".slab";
constexpr std::size_t kHexDigits = 16;

std::string slab_name(StoreId store) {
  std::array<char, kHexDigits + 1> digits;
  std::snprintf(digits.data(), digits.size(), "%016" PRIx64, store);
  return kPrefix + digits.data() + kSuffix;
}

bool is_slab_name(const std::string& name) {
  if (name.size() != kPrefix.size() + kHexDigits + kSuffix.size()) return false;
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return false;
  const std::string store = name.substr(kPrefix.size(), kHexDigits);
  return store.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

Slab::Slab(FileSystem& file_system, StoreId store, std::size_t page_bytes)
    : file_system_(file_system),
      store_(store),
      page_bytes_(page_bytes),
      generation_(fork_generation()) {}

Result<std::unique_ptr<Slab>> Slab::create(FileSystem& files,
                                           const std::vector<SlabDirectory>& directories,
                                           StoreId store, std::size_t page_bytes) {
  if (directories.empty()) {
    return Status(Code::kInvalidArgument, "a slab needs a directory at least");
  }
  std::unique_ptr<Slab> slab(new Slab(files, store, page_bytes));
  const auto count = static_cast<std::uint32_t>(directories.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    TACO_RETURN_IF_ERROR(slab->add(directories[i], i, count));
  }
  return slab;
}

Status Slab::add(const SlabDirectory& directory, std::uint32_t index, std::uint32_t count) {
  if (directory.bytes < page_place(1, page_bytes_)) {
    return Status(Code::kInvalidArgument,
                  std::to_string(directory.bytes) + " bytes in " + directory.path +
                      " have no room for a page: " + std::to_string(page_place(1, page_bytes_)) +
                      " are the least");
  }
  const std::uint64_t slots = (directory.bytes - kHeaderBytes) / page_bytes_;
  if (slots > Slot::kNoFile) {
    return Status(Code::kInvalidArgument, std::to_string(directory.bytes) + " bytes in " +
                                              directory.path +
                                              " are more pages than can be numbered");
  }
  auto lock = file_system_.lock(directory.path);
  if (!lock.ok()) return lock.status();
  TACO_RETURN_IF_ERROR(remove_stale(directory.path));

  // Known from here on, so that a failure further below removes it.
  Part& part = parts_.emplace_back();
  part.lock = std::move(lock).value();
  const std::string path = directory.path + "/" + slab_name(store_);
  auto file = file_system_.open(path, OpenMode::kCreate, Caching::kDirect);
  if (!file.ok()) return file.status();
  part.path = path;
  part.file = std::move(file).value();
  part.slots = static_cast<std::uint32_t>(slots);
  TACO_RETURN_IF_ERROR(part.file->reserve(page_place(part.slots, page_bytes_)));

  DataHeader header;
  header.kind = DataHeader::Kind::kSlab;
  header.store = store_;
  header.page_bytes = page_bytes_;
  header.pages = part.slots;
  header.index = index;
  header.count = count;
  AlignedMemory block(kHeaderBytes);
  encode_header(header, HeaderBlock(block.data(), kHeaderBytes));
  TACO_RETURN_IF_ERROR(write_fully(*part.file, block.span(), 0));

  part.free.resize(part.slots);
  for (std::uint32_t i = 0; i < part.slots; ++i) part.free[i] = part.slots - 1 - i;
  files_.push_back(part.file.get());
  return {};
}

// The process that made these files held the lock that is ours now, so nobody uses them any more.
Status Slab::remove_stale(const std::string& directory) {
  auto names = file_system_.list(directory);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!is_slab_name(name)) continue;
    const std::string path = directory + "/" + name;
    TACO_RETURN_IF_ERROR(file_system_.remove(path));
    TACO_LOG_INFO("zerocache", "removed %s, which a process has left that was killed",
                  path.c_str());
  }
  return {};
}

Slab::~Slab() {
  if (generation_ != fork_generation()) return;
  for (const Part& part : parts_) {
    if (part.path.empty()) continue;
    const Status removed = file_system_.remove(part.path);
    if (!removed.ok()) TACO_LOG_WARNING("zerocache", "%s", removed.message().c_str());
  }
}

Slot Slab::take() {
  const Part* least = nullptr;
  for (const Part& part : parts_) {
    if (part.free.empty()) continue;
    // By the share of free slots, without a division: a / b > c / d.
    if (least == nullptr || std::uint64_t{part.free.size()} * least->slots >
                                std::uint64_t{least->free.size()} * part.slots) {
      least = &part;
    }
  }
  if (least == nullptr) return {};
  const auto file = static_cast<std::uint32_t>(least - parts_.data());
  std::vector<std::uint32_t>& free = parts_[file].free;
  const Slot slot = {file, free.back()};
  free.pop_back();
  return slot;
}

void Slab::give_back(Slot slot) { parts_[slot.file].free.push_back(slot.index); }

std::uint64_t Slab::slots() const {
  std::uint64_t sum = 0;
  for (const Part& part : parts_) sum += part.slots;
  return sum;
}

std::uint64_t Slab::free_slots() const {
  std::uint64_t sum = 0;
  for (const Part& part : parts_) sum += part.free.size();
  return sum;
}

std::uint64_t Slab::place_of(Slot slot) const { return page_place(slot.index, page_bytes_); }

}  // namespace taco::zerocache
