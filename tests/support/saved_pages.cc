#include "support/saved_pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace taco::testing {

using zerocache::Checkpoint;
using zerocache::Layout;
using zerocache::PageId;
using zerocache::PlacedTensor;

namespace {

constexpr zerocache::StoreId kStore = 0x5a5ed;

// The bytes of one tensor in one save.
class Expected {
 public:
  Expected(std::uint64_t save, const PlacedTensor& tensor)
      : start_(std::hash<std::string>()(tensor.name) + save * 131 + (save >> 8)) {}
  std::byte at(std::size_t offset) const { return std::byte((start_ + offset / 16) & 0xFF); }

 private:
  const std::size_t start_;
};

}  // namespace

Layout layout_of_saves(std::size_t page_bytes) {
  auto layout = Layout::make({{"embedding", 3 * 4096},
                              {"norm", 100},
                              {"bias", 4},
                              {"empty", 0},
                              {"weight", 2 * 4096 + 1000},
                              {"head", 4096}},
                             page_bytes);
  EXPECT_TRUE(layout.ok());
  return std::move(layout).value();
}

Result<std::uint64_t> save_number(zerocache::FileSystem& files, const std::string& directory,
                                  std::uint64_t save, const Layout& layout,
                                  zerocache::Collectives* ranks) {
  std::vector<std::byte> range(layout.bytes());
  for (const PlacedTensor& tensor : layout.tensors()) {
    const Expected expected(save, tensor);
    for (std::size_t i = 0; i < tensor.bytes; ++i) range[tensor.offset + i] = expected.at(i);
  }
  zerocache::CheckpointSource source;
  source.layout = &layout;
  source.store = kStore;
  source.note = std::to_string(save);
  source.pages_per_file = 4;
  source.ranks = ranks;
  if (ranks != nullptr) {
    source.pages_per_file = 1;
    source.holds = [ranks](PageId page) {
      return static_cast<int>(page) % ranks->size() == ranks->rank();
    };
    source.store += static_cast<zerocache::StoreId>(ranks->rank());
    source.note.append(static_cast<std::size_t>(ranks->rank()), '0');
  }
  source.read_page = [&](PageId page, std::span<std::byte> to) {
    std::memcpy(to.data(), range.data() + page * layout.page_bytes(), to.size());
    return Status();
  };
  return zerocache::save_checkpoint(files, directory, source);
}

Loaded load_any(zerocache::FileSystem& files, const std::string& directory, const Layout& layout) {
  Loaded loaded;
  const auto opened = Checkpoint::open(files, directory);
  if (!opened.ok()) {
    // A checkpoint that is not there at all is no damage.
    loaded.exists = opened.status().code() != Code::kInvalidArgument;
    if (loaded.exists) loaded.problem = opened.status().message();
    return loaded;
  }
  loaded.exists = true;
  loaded.save = std::stoull("0" + opened.value().manifest().note);
  std::map<std::string, std::size_t> bytes;
  const Status status = opened.value().load(layout, [&](const Checkpoint::Piece& piece) {
    const Expected expected(loaded.save, piece.tensor);
    for (std::size_t i = 0; i < piece.bytes.size(); ++i) {
      if (piece.bytes[i] != expected.at(piece.offset + i)) {
        return Status(Code::kInternal, piece.tensor.name + " has bytes of another save");
      }
    }
    bytes[piece.tensor.name] += piece.bytes.size();
    return Status();
  });
  loaded.problem = status.message();
  for (const PlacedTensor& tensor : layout.tensors()) {
    if (status.ok() && bytes[tensor.name] != tensor.bytes) {
      loaded.problem = tensor.name + " has not all its bytes";
    }
  }
  return loaded;
}

void expect_save(const std::string& directory, std::uint64_t save, const Layout& layout) {
  const Loaded loaded = load_any(zerocache::FileSystem::real(), directory, layout);
  EXPECT_TRUE(loaded.exists);
  EXPECT_EQ(loaded.problem, "");
  EXPECT_EQ(loaded.save, save);
}

}  // namespace taco::testing
