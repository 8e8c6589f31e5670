#include "zerocache/checkpoint/manifest.h"

#include <utility>

#include "zerocache/disk/disk_format.h"
#include "zerocache/pages/checksum.h"

namespace taco::zerocache {
namespace {

constexpr std::uint64_t kManifestMagic = 0x3154534e414d4354;  // "TCMANST1"
constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);
constexpr std::size_t kMinTensorBytes = 4 + 8 + 8;
constexpr std::size_t kDimensionBytes = 8 + 8;
constexpr std::size_t kSavedPageBytes = 4 + 4 + 8;
constexpr std::size_t kMinFileBytes = 4;

// Whether every number refers to something that is there.
bool fits_together(const Manifest& manifest) {
  if (!valid_page_bytes(manifest.page_bytes)) return false;
  const std::uint64_t range = std::uint64_t{manifest.pages.size()} * manifest.page_bytes;
  std::uint64_t end = 0;
  for (const SavedTensor& tensor : manifest.tensors) {
    if (!fits(tensor.form, tensor.bytes)) return false;
    if (tensor.offset < end || tensor.offset > range || tensor.bytes > range - tensor.offset) {
      return false;
    }
    end = tensor.offset + tensor.bytes;
  }
  for (const SavedPage& page : manifest.pages) {
    if (page.file >= manifest.files.size() && page.file != SavedPage::kNoFile) return false;
  }
  for (const std::string& name : manifest.files) {
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      return false;
    }
  }
  return true;
}

void put_form(RecordWriter& record, const TensorForm& form) {
  record.put_text(form.dtype);
  record.put_u32(static_cast<std::uint32_t>(form.shape.size()));
  for (std::size_t i = 0; i < form.shape.size(); ++i) {
    record.put_u64(form.shape[i]);
    record.put_u64(form.strides[i]);
  }
}

TensorForm read_form(RecordReader& record) {
  TensorForm form;
  form.dtype = record.text();
  form.shape.resize(record.count(kDimensionBytes));
  form.strides.resize(form.shape.size());
  for (std::size_t i = 0; i < form.shape.size(); ++i) {
    form.shape[i] = record.u64();
    form.strides[i] = record.u64();
  }
  return form;
}

}  // namespace

std::vector<std::byte> encode_manifest(const Manifest& manifest) {
  RecordWriter record;
  record.put_u64(kManifestMagic);
  record.put_u32(manifest.format);
  record.put_u64(manifest.serial);
  record.put_u64(manifest.store);
  record.put_u64(manifest.page_bytes);
  record.put_u32(static_cast<std::uint32_t>(manifest.tensors.size()));
  for (const SavedTensor& tensor : manifest.tensors) {
    record.put_text(tensor.name);
    record.put_u64(tensor.bytes);
    record.put_u64(tensor.offset);
    if (manifest.format > kFirstManifestFormat) put_form(record, tensor.form);
  }
  record.put_u32(static_cast<std::uint32_t>(manifest.pages.size()));
  for (const SavedPage& page : manifest.pages) {
    record.put_u32(page.file);
    record.put_u32(page.index);
    record.put_u64(page.checksum);
  }
  record.put_u32(static_cast<std::uint32_t>(manifest.files.size()));
  for (const std::string& name : manifest.files) record.put_text(name);
  record.put_text(manifest.note);
  record.put_u64(digest(record.bytes()));
  return record.bytes();
}

Result<Manifest> decode_manifest(std::span<const std::byte> bytes, const std::string& path) {
  RecordReader record(bytes);
  Manifest manifest;
  if (record.u64() != kManifestMagic) return Status(Code::kResource, path + " is no manifest");
  manifest.format = record.u32();
  if (record.ok() &&
      (manifest.format < kFirstManifestFormat || manifest.format > kManifestFormat)) {
    return other_format(path, manifest.format, kManifestFormat);
  }
  manifest.serial = record.u64();
  manifest.store = record.u64();
  manifest.page_bytes = record.u64();
  manifest.tensors.resize(record.count(kMinTensorBytes));
  for (SavedTensor& tensor : manifest.tensors) {
    tensor.name = record.text();
    tensor.bytes = record.u64();
    tensor.offset = record.u64();
    if (manifest.format > kFirstManifestFormat) tensor.form = read_form(record);
  }
  manifest.pages.resize(record.count(kSavedPageBytes));
  for (SavedPage& page : manifest.pages) {
    page.file = record.u32();
    page.index = record.u32();
    page.checksum = record.u64();
  }
  manifest.files.resize(record.count(kMinFileBytes));
  for (std::string& name : manifest.files) name = record.text();
  manifest.note = record.text();
  const bool whole = record.ok() && record.left() == kChecksumBytes;
  if (!whole || record.u64() != digest(bytes.first(bytes.size() - kChecksumBytes)) ||
      !fits_together(manifest)) {
    return Status(Code::kResource, path + " is damaged");
  }
  return manifest;
}

}  // namespace taco::zerocache
