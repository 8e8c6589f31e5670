#include "zerocache/disk/disk_format.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "zerocache/pages/checksum.h"

namespace taco::zerocache {
namespace {

constexpr std::uint64_t kMagic = 0x3153454741504354;  // "TCPAGES1"
constexpr std::uint32_t kVersion = 1;

}  // namespace

void encode_header(const DataHeader& header, HeaderBlock block) {
  RecordWriter record;
  record.put_u64(kMagic);
  record.put_u32(kVersion);
  record.put_u32(static_cast<std::uint32_t>(header.kind));
  record.put_u64(header.store);
  record.put_u64(header.page_bytes);
  record.put_u32(header.pages);
  record.put_u32(header.index);
  record.put_u32(header.count);
  record.put_u64(header.serial);
  record.put_u64(digest(record.bytes()));
  std::fill(block.begin(), block.end(), std::byte{0});
  std::copy(record.bytes().begin(), record.bytes().end(), block.begin());
}

Status other_format(const std::string& path, std::uint32_t found, std::uint32_t known) {
  return Status(Code::kResource, path + " has format " + std::to_string(found) +
                                     "; this program reads format " + std::to_string(known));
}

Result<DataHeader> decode_header(std::span<const std::byte, kHeaderBytes> block,
                                 const std::string& path) {
  RecordReader record(block);
  DataHeader header;
  const bool is_ours = record.u64() == kMagic;
  const std::uint32_t version = record.u32();
  const std::uint32_t kind = record.u32();
  header.kind = static_cast<DataHeader::Kind>(kind);
  header.store = record.u64();
  header.page_bytes = record.u64();
  header.pages = record.u32();
  header.index = record.u32();
  header.count = record.u32();
  header.serial = record.u64();
  const std::size_t hashed = kHeaderBytes - record.left();
  const std::uint64_t sum = record.u64();
  if (!is_ours) return Status(Code::kResource, path + " is no file of pages");
  if (version != kVersion) {
    return other_format(path, version, kVersion);
  }
  if (sum != digest(block.first(hashed)) || kind < 1 || kind > 2 ||
      !valid_page_bytes(header.page_bytes) || header.index >= header.count) {
    return Status(Code::kResource, path + ": its header is damaged");
  }
  return header;
}

void FreeAligned::operator()(std::byte* memory) const { std::free(memory); }

AlignedMemory::AlignedMemory(std::size_t bytes)
    : bytes_((bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment) {
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kIoAlignment, bytes_)));
  if (memory_ == nullptr) throw std::bad_alloc();
  std::memset(memory_.get(), 0, bytes_);
}

void RecordWriter::put(std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) bytes_.push_back(std::byte(value >> (8 * i) & 0xFF));
}

void RecordWriter::put_text(std::string_view text) {
  put_u32(static_cast<std::uint32_t>(text.size()));
  const auto bytes = std::as_bytes(std::span(text));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::uint64_t RecordReader::get(std::size_t bytes) {
  if (rest_.size() < bytes) {
    ok_ = false;
    rest_ = {};
    return 0;
  }
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    value |= std::to_integer<std::uint64_t>(rest_[i]) << (8 * i);
  }
  rest_ = rest_.subspan(bytes);
  return value;
}

std::string RecordReader::text() {
  const std::uint32_t bytes = count(1);
  std::string text(reinterpret_cast<const char*>(rest_.data()), bytes);
  rest_ = rest_.subspan(bytes);
  return text;
}

std::uint32_t RecordReader::count(std::size_t min_bytes) {
  const std::uint32_t count = u32();
  if (count <= rest_.size() / min_bytes) return count;
  ok_ = false;
  rest_ = {};
  return 0;
}

}  // namespace taco::zerocache
