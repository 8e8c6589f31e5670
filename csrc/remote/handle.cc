#include "remote/handle.h"

#include <cstring>

#include "kernels/kernels.h"

namespace taco::remote {
namespace {

constexpr char kHandleMagic[12] = {'t', 'a', 'c', 'o', '-', 'm', 'e', 'm', 'o', 'r', 'y', ':'};
constexpr std::uint32_t kHandleVersion = 1;

struct HandleRecord {
  char magic[12];
  std::uint32_t version;
  std::uint64_t endpoint, region;
  Token token;
  std::uint64_t offset, bytes;
  std::uint32_t zero, checksum;  // CRC32C of all before it
};
static_assert(sizeof(HandleRecord) == kHandleBytes);

std::uint32_t checksum_of(const HandleRecord& record) {
  return kernels::crc32c(0, &record, offsetof(HandleRecord, checksum));
}

}  // namespace

std::string encode(const Handle& handle) {
  HandleRecord record{};
  std::memcpy(record.magic, kHandleMagic, sizeof record.magic);
  record.version = kHandleVersion;
  record.endpoint = handle.endpoint;
  record.region = handle.region.number;
  record.token = handle.region.token;
  record.offset = handle.offset;
  record.bytes = handle.bytes;
  record.checksum = checksum_of(record);
  return std::string(reinterpret_cast<const char*>(&record), sizeof record);
}

Result<Handle> decode_handle(std::string_view bytes) {
  HandleRecord record{};
  const std::size_t head = offsetof(HandleRecord, endpoint);
  if (bytes.size() < head || std::memcmp(bytes.data(), kHandleMagic, sizeof kHandleMagic) != 0) {
    return invalid("these " + std::to_string(bytes.size()) +
                   " bytes are no handle of HARP's: give what serialize() of a remote buffer made");
  }
  std::memcpy(&record, bytes.data(), head);
  if (record.version != kHandleVersion) {
    return Status(Code::kVersionMismatch,
                  "the handle is of version " + std::to_string(record.version) +
                      ", and this taco_torch knows version " + std::to_string(kHandleVersion) +
                      ": both jobs need the same taco_torch");
  }
  if (bytes.size() != sizeof record) {
    return invalid("the handle has " + std::to_string(bytes.size()) + " bytes and should have " +
                   std::to_string(sizeof record) + ": it was cut off or added to");
  }
  std::memcpy(&record, bytes.data(), sizeof record);
  if (record.checksum != checksum_of(record) || record.zero != 0 ||
      record.bytes > UINT64_MAX - record.offset) {
    return invalid("the handle is damaged: its checksum does not match its bytes");
  }
  return Handle{record.endpoint, {record.region, record.token}, record.offset, record.bytes};
}

}  // namespace taco::remote
