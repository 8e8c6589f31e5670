// The manifest lists what a checkpoint consists of: its tensors and where they lie, and the file,
// place and checksum of every page. One record with a checksum of its own; a checkpoint is what its
// manifest says, and a directory without one holds none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"
#include "zerocache/pages/tensor_form.h"

namespace taco::zerocache {

struct SavedPage {
  static constexpr std::uint32_t kNoFile = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t file = kNoFile;  // index among Manifest::files; kNoFile: it held nothing
  std::uint32_t index = 0;       // of the page in that file
  std::uint64_t checksum = 0;    // bound to (store, page, serial)
};

struct SavedTensor : PlacedTensor {
  TensorForm form;
};

// Format 1 has no forms: those of its tensors are not known.
inline constexpr std::uint32_t kFirstManifestFormat = 1, kManifestFormat = 2;

struct Manifest {
  std::uint32_t format = kManifestFormat;
  std::uint64_t serial = 0;  // of the save: 1 for a directory's first
  StoreId store = 0;         // that was saved
  std::size_t page_bytes = 0;
  std::vector<SavedTensor> tensors;  // by rising offset
  std::vector<SavedPage> pages;      // by page
  std::vector<std::string> files;    // names in the checkpoint's directory
  std::string note;                  // the caller's own bytes
};

std::vector<std::byte> encode_manifest(const Manifest& manifest);
// Takes any bytes; kResource, naming `path`, unless they are a whole manifest that fits together.
Result<Manifest> decode_manifest(std::span<const std::byte> bytes, const std::string& path);

}  // namespace taco::zerocache
