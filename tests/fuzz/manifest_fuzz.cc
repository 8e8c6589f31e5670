// Manifests and headers are read from disks: decoding must survive any bytes, also ones whose
// checksum fits, and what it accepts must be what the same bytes are written from.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "zerocache/checkpoint/manifest.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/pages/checksum.h"

namespace {

using namespace taco::zerocache;  // NOLINT(google-build-using-namespace)

void decode(const std::vector<std::byte>& bytes) {
  const auto manifest = decode_manifest(bytes, "fuzz");
  if (manifest.ok() && encode_manifest(manifest.value()) != bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  std::vector<std::byte> bytes(input.begin(), input.end());
  decode(bytes);
  RecordWriter checksum;
  checksum.put_u64(digest(bytes));
  bytes.insert(bytes.end(), checksum.bytes().begin(), checksum.bytes().end());
  decode(bytes);

  bytes.assign(input.begin(), input.end());
  bytes.resize(kHeaderBytes);
  (void)decode_header(std::span<const std::byte, kHeaderBytes>(bytes.data(), kHeaderBytes), "fuzz");
  return 0;
}
