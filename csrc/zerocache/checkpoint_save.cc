#include <algorithm>
#include <cstdio>
#include <memory>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "zerocache/checkpoint.h"
#include "zerocache/checkpoint_names.h"
#include "zerocache/checksum.h"
#include "zerocache/disk_format.h"

namespace taco::zerocache {

std::string data_name(std::uint64_t serial, std::uint32_t index) {
  return "pages-" + std::to_string(serial) + "-" + std::to_string(index) + ".data";
}

std::optional<std::uint64_t> serial_of(const std::string& name) {
  unsigned long long serial = 0;
  unsigned index = 0;
  if (std::sscanf(name.c_str(), "pages-%llu-%u.data", &serial, &index) != 2) return std::nullopt;
  if (name != data_name(serial, index)) return std::nullopt;
  return serial;
}

namespace {

// One save. Its steps are in the order in which they must last.
class Save {
 public:
  Save(FileSystem& files, const std::string& directory, const CheckpointSource& source)
      : files_(files), directory_(directory), source_(source) {}

  Result<std::uint64_t> run() {
    TACO_RETURN_IF_ERROR(prepare_directory());
    auto lock = files_.lock(directory_);
    if (!lock.ok()) return lock.status();
    TACO_RETURN_IF_ERROR(look_around());
    if (Status status = write_all(); !status.ok()) {
      undo();
      return status;
    }
    // If the disk fails here, nobody knows which manifest it holds: both keep their data.
    TACO_RETURN_IF_ERROR(files_.rename(path_of(kProvisionalManifestName), path_of(kManifestName)));
    // From here on the new checkpoint is what a reader finds, lasting or not.
    TACO_RETURN_IF_ERROR(files_.sync_directory(directory_));
    for (const std::string& name : former_data_) remove(name);
    return manifest_.serial;
  }

 private:
  std::string path_of(const std::string& name) const { return directory_ + "/" + name; }

  Status prepare_directory() {
    TACO_RETURN_IF_ERROR(files_.make_directory(directory_));
    // A directory lasts only once its own name does. One that was there may have been made by a
    // save that was cut off right after, so this is no question of who made it.
    return files_.sync_directory(folder_of(directory_));
  }

  // Finds the number of this save, and removes what saves have left that did not get far.
  Status look_around() {
    auto names = files_.list(directory_);
    if (!names.ok()) return names.status();
    const bool has_manifest = std::count(names->begin(), names->end(), kManifestName) > 0;
    std::vector<std::string> in_use;
    bool is_readable = false;
    if (has_manifest) {
      const auto current = Checkpoint::open(files_, directory_);
      is_readable = current.ok();
      if (is_readable) {
        in_use = current.value().manifest().files;
        manifest_.serial = current.value().manifest().serial;
      } else {
        TACO_LOG_WARNING("zerocache", "%s; this save replaces it",
                         current.status().message().c_str());
      }
    }
    for (const std::string& name : *names) {
      const std::optional<std::uint64_t> serial = serial_of(name);
      if (!serial) continue;
      manifest_.serial = std::max(manifest_.serial, *serial);
      const bool is_used = std::count(in_use.begin(), in_use.end(), name) > 0;
      // What belongs to a manifest that cannot be read is kept until there is a better one.
      if (is_used || (has_manifest && !is_readable)) {
        former_data_.push_back(name);
      } else {
        remove(name);
      }
    }
    ++manifest_.serial;
    return {};
  }

  Status write_all() {
    const Layout& layout = *source_.layout;
    manifest_.store = source_.store;
    manifest_.page_bytes = layout.page_bytes();
    manifest_.tensors.assign(layout.tensors().begin(), layout.tensors().end());
    std::sort(manifest_.tensors.begin(), manifest_.tensors.end(),
              [](const PlacedTensor& a, const PlacedTensor& b) {
                return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
              });
    manifest_.note = source_.note;
    manifest_.pages.resize(layout.pages());
    std::vector<PageId> pages;
    for (PageId page = 0; page < layout.pages(); ++page) {
      const bool holds = source_.holds == nullptr || source_.holds(page);
      if (holds && !layout.tensors_on(page).empty()) pages.push_back(page);
    }
    const std::size_t per_file = std::max(source_.pages_per_file, 1u);
    const std::size_t count = (pages.size() + per_file - 1) / per_file;
    AlignedMemory page(layout.page_bytes());
    for (std::size_t index = 0; index < count; ++index) {
      const std::size_t first = index * per_file;
      const std::span<const PageId> part =
          std::span(pages).subspan(first, std::min(per_file, pages.size() - first));
      TACO_RETURN_IF_ERROR(write_data(static_cast<std::uint32_t>(index),
                                      static_cast<std::uint32_t>(count), part, page.span()));
    }
    TACO_RETURN_IF_ERROR(write_manifest());
    // The names of the new files must last before the name that leads to them.
    return files_.sync_directory(directory_);
  }

  Status write_data(std::uint32_t index, std::uint32_t count, std::span<const PageId> pages,
                    std::span<std::byte> page) {
    const std::string name = data_name(manifest_.serial, index);
    auto file = files_.open(path_of(name), OpenMode::kCreate, Caching::kDirect);
    if (!file.ok()) return file.status();
    manifest_.files.push_back(name);
    TACO_RETURN_IF_ERROR((*file)->reserve(page_place(pages.size(), page.size())));
    DataHeader header;
    header.kind = DataHeader::Kind::kCheckpoint;
    header.store = manifest_.store;
    header.page_bytes = page.size();
    header.pages = static_cast<std::uint32_t>(pages.size());
    header.index = index;
    header.count = count;
    header.serial = manifest_.serial;
    encode_header(header, page.first<kHeaderBytes>());
    TACO_RETURN_IF_ERROR(write_fully(**file, page.first(kHeaderBytes), 0));
    for (std::uint32_t i = 0; i < pages.size(); ++i) {
      const PageId id = pages[i];
      TACO_RETURN_IF_ERROR(source_.read_page(id, page).with_prefix("saving: "));
      manifest_.pages[id] = {index, i, checksum(page, {manifest_.store, id, manifest_.serial})};
      const Status written = write_fully(**file, page, page_place(i, page.size()));
      TACO_RETURN_IF_ERROR(written.with_prefix("saving " + source_.layout->describe(id) + ": "));
    }
    return (*file)->sync();
  }

  Status write_manifest() {
    const std::string path = path_of(kProvisionalManifestName);
    TACO_RETURN_IF_ERROR(files_.remove(path));
    auto file = files_.open(path, OpenMode::kCreate, Caching::kKernel);
    if (!file.ok()) return file.status();
    TACO_RETURN_IF_ERROR(write_fully(**file, encode_manifest(manifest_), 0));
    return (*file)->sync();
  }

  void undo() {
    for (const std::string& name : manifest_.files) remove(name);
    remove(kProvisionalManifestName);
  }

  void remove(const std::string& name) {
    const Status removed = files_.remove(path_of(name));
    if (!removed.ok()) TACO_LOG_WARNING("zerocache", "%s", removed.message().c_str());
  }

  FileSystem& files_;
  const std::string& directory_;
  const CheckpointSource& source_;
  Manifest manifest_;
  std::vector<std::string> former_data_;  // to be removed once there is something better
};

}  // namespace

Result<std::uint64_t> save_checkpoint(FileSystem& files, const std::string& directory,
                                      const CheckpointSource& source) {
  return Save(files, directory, source).run();
}

}  // namespace taco::zerocache
