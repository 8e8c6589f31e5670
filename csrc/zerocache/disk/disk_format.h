// Files of pages as they lie on disk: a header of one block, then the pages one after the other.
// Both the working slab and a checkpoint consist of such files. Numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

inline constexpr std::size_t kHeaderBytes = kIoAlignment;

struct DataHeader {
  enum class Kind : std::uint32_t { kSlab = 1, kCheckpoint = 2 };
  Kind kind = Kind::kSlab;
  StoreId store = 0;
  std::uint64_t page_bytes = 0;
  std::uint32_t pages = 0;  // that the file has room for
  std::uint32_t index = 0;  // which of `count` files it is
  std::uint32_t count = 0;
  std::uint64_t serial = 0;  // of the save; 0 in a slab
};

using HeaderBlock = std::span<std::byte, kHeaderBytes>;
void encode_header(const DataHeader& header, HeaderBlock block);
// kResource, naming `path`, for what is no such header.
Result<DataHeader> decode_header(std::span<const std::byte, kHeaderBytes> block,
                                 const std::string& path);

// kResource: the file at `path` was written in another format than the one known here.
Status other_format(const std::string& path, std::uint32_t found, std::uint32_t known);

// Where the page of this index begins in its file.
constexpr std::uint64_t page_place(std::uint32_t index, std::size_t page_bytes) {
  return kHeaderBytes + std::uint64_t{index} * page_bytes;
}

// Memory that direct I/O accepts.
struct FreeAligned {
  void operator()(std::byte* memory) const;
};
class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t bytes);  // rounded up to kIoAlignment; zeros
  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {memory_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte, FreeAligned> memory_;
  std::size_t bytes_;
};

// Appends numbers and texts to a record.
class RecordWriter {
 public:
  void put_u32(std::uint32_t value) { put(value, sizeof value); }
  void put_u64(std::uint64_t value) { put(value, sizeof value); }
  void put_text(std::string_view text);
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  void put(std::uint64_t value, std::size_t bytes);
  std::vector<std::byte> bytes_;
};

// Reads them back from bytes that may be anything. Beyond the end everything is 0 and ok() false,
// so that a record can be read whole and judged once.
class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::uint32_t u32() { return static_cast<std::uint32_t>(get(sizeof(std::uint32_t))); }
  std::uint64_t u64() { return get(sizeof(std::uint64_t)); }
  std::string text();
  // A count of items of at least so many bytes each; not ok() if there cannot be that many.
  std::uint32_t count(std::size_t min_bytes);
  bool ok() const { return ok_; }
  std::size_t left() const { return rest_.size(); }

 private:
  std::uint64_t get(std::size_t bytes);
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace taco::zerocache
