#include "zerocache/checkpoint.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "zerocache/checkpoint_names.h"
#include "zerocache/checksum.h"
#include "zerocache/disk_format.h"

namespace taco::zerocache {

Result<Checkpoint> Checkpoint::open(FileSystem& files, const std::string& directory) {
  const std::string path = directory + "/" + kManifestName;
  auto file = files.open(path, OpenMode::kRead, Caching::kKernel);
  if (!file.ok()) return file.status().with_prefix(directory + " holds no checkpoint: ");
  const auto size = (*file)->size();
  if (!size.ok()) return size.status();
  // No manifest of a store that exists is as long; a damaged file may claim to be.
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
  if (size.value() > kMostBytes) return Status(Code::kResource, path + " is damaged");
  std::vector<std::byte> bytes(size.value());
  TACO_RETURN_IF_ERROR(read_fully(**file, bytes, 0));
  auto manifest = decode_manifest(bytes, path);
  if (!manifest.ok()) return manifest.status();
  return Checkpoint(files, directory, std::move(manifest).value());
}

Status Checkpoint::check(const Layout& layout) const {
  const std::string here = "the checkpoint in " + directory_;
  std::unordered_set<std::string> saved;
  for (const PlacedTensor& tensor : manifest_.tensors) {
    saved.insert(tensor.name);
    const PlacedTensor* const own = layout.find(tensor.name);
    if (own == nullptr) {
      return Status(Code::kInvalidArgument,
                    here + " is of another model or optimizer: it has a tensor '" + tensor.name +
                        "' of " + std::to_string(tensor.bytes) + " bytes, which this one has not");
    }
    if (own->bytes != tensor.bytes) {
      return Status(Code::kInvalidArgument,
                    here + " is of another model or optimizer: its tensor '" + tensor.name +
                        "' has " + std::to_string(tensor.bytes) + " bytes, this one's has " +
                        std::to_string(own->bytes));
    }
  }
  for (const PlacedTensor& tensor : layout.tensors()) {
    if (!tensor.removed() && saved.count(tensor.name) == 0) {
      return Status(Code::kInvalidArgument,
                    here + " is of another model or optimizer: it lacks tensor '" + tensor.name +
                        "' of " + std::to_string(tensor.bytes) + " bytes");
    }
  }
  return {};
}

std::string Checkpoint::describe(PageId page) const {
  const std::uint64_t start = std::uint64_t{page} * manifest_.page_bytes;
  const auto first = std::partition_point(
      manifest_.tensors.begin(), manifest_.tensors.end(),
      [&](const PlacedTensor& tensor) { return tensor.offset + tensor.bytes <= start; });
  std::string text = "page " + std::to_string(page);
  if (first != manifest_.tensors.end()) text += " (" + first->name + ")";
  return text;
}

Result<std::unique_ptr<File>> Checkpoint::open_data(std::uint32_t index) const {
  const std::string path = directory_ + "/" + manifest_.files[index];
  auto file = files_->open(path, OpenMode::kRead, Caching::kDirect);
  if (!file.ok()) return file.status();
  AlignedMemory block(kHeaderBytes);
  TACO_RETURN_IF_ERROR(read_fully(**file, block.span(), 0));
  const auto header = decode_header(HeaderBlock(block.data(), kHeaderBytes), path);
  if (!header.ok()) return header.status();
  const DataHeader& found = header.value();
  if (found.kind != DataHeader::Kind::kCheckpoint || found.store != manifest_.store ||
      found.serial != manifest_.serial || found.page_bytes != manifest_.page_bytes ||
      found.index != index || found.count != manifest_.files.size()) {
    return Status(Code::kResource, path + " is not the file that the manifest beside it means");
  }
  return file;
}

Status Checkpoint::visit_pages(
    const std::function<bool(PageId)>& wants,
    const std::function<Status(PageId, std::span<const std::byte>)>& visit) const {
  std::vector<std::unique_ptr<File>> files(manifest_.files.size());
  AlignedMemory memory(manifest_.page_bytes);
  for (PageId page = 0; page < manifest_.pages.size(); ++page) {
    const SavedPage& saved = manifest_.pages[page];
    if (saved.file == SavedPage::kNoFile || !wants(page)) continue;
    std::unique_ptr<File>& file = files[saved.file];
    if (file == nullptr) {
      auto opened = open_data(saved.file);
      if (!opened.ok()) return opened.status();
      file = std::move(opened).value();
    }
    const Status read =
        read_fully(*file, memory.span(), page_place(saved.index, manifest_.page_bytes));
    TACO_RETURN_IF_ERROR(read.with_prefix(describe(page) + ": "));
    if (checksum(memory.span(), {manifest_.store, page, manifest_.serial}) != saved.checksum) {
      return Status(Code::kResource,
                    describe(page) + ": " + file->path() + " gives other bytes as " + "its page " +
                        std::to_string(saved.index) + " than those that were saved");
    }
    TACO_RETURN_IF_ERROR(visit(page, memory.span()));
  }
  return {};
}

Status Checkpoint::verify() const {
  return visit_pages([](PageId) { return true; },
                     [](PageId, std::span<const std::byte>) { return Status(); });
}

Status Checkpoint::load(const Layout& layout, const std::function<Status(const Piece&)>& take,
                        const Wants& wants) const {
  TACO_RETURN_IF_ERROR(check(layout));
  struct Part {
    const PlacedTensor* own;
    std::size_t offset;       // in it
    std::size_t from, bytes;  // on the page
  };
  std::size_t next = 0;     // the first tensor that goes on at the page's start or later
  std::vector<Part> parts;  // of the page that are wanted
  const auto find_parts = [&](PageId page) {
    parts.clear();
    const std::uint64_t start = std::uint64_t{page} * manifest_.page_bytes;
    const std::uint64_t end = start + manifest_.page_bytes;
    for (; next < manifest_.tensors.size(); ++next) {
      const PlacedTensor& saved = manifest_.tensors[next];
      if (saved.offset >= end) break;
      const std::uint64_t from = std::max(saved.offset, start);
      const std::uint64_t to = std::min(saved.offset + saved.bytes, end);
      const PlacedTensor& own = *layout.find(saved.name);
      if (from < to && wants(own, from - saved.offset, to - from)) {
        parts.push_back({&own, from - saved.offset, from - start, to - from});
      }
      if (saved.offset + saved.bytes > end) break;  // it goes on
    }
    return !parts.empty();
  };
  return visit_pages(find_parts, [&](PageId, std::span<const std::byte> bytes) -> Status {
    for (const Part& part : parts) {
      TACO_RETURN_IF_ERROR(take({*part.own, part.offset, bytes.subspan(part.from, part.bytes)}));
    }
    return {};
  });
}

}  // namespace taco::zerocache
