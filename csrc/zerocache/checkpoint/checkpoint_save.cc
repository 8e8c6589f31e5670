#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "zerocache/checkpoint/checkpoint.h"
#include "zerocache/checkpoint/checkpoint_names.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/pages/checksum.h"
#include "zerocache/ranks/agreement.h"

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

// A page that a rank has written, and its checksum.
struct Written {
  std::uint64_t page = 0;
  std::uint64_t checksum = 0;
};

// One save. Its steps are in the order in which they must last.
class Save {
 public:
  Save(FileSystem& files, const std::string& directory, const CheckpointSource& source)
      : files_(files), directory_(directory), source_(source) {}

  Result<std::uint64_t> run() {
    TACO_RETURN_IF_ERROR(together(is_first() ? take_directory() : Status()));
    TACO_RETURN_IF_ERROR(number());
    Status status = together(write_pages());
    if (status.ok()) status = collect();
    if (status.ok()) status = together(is_first() ? write_manifest() : Status());
    if (!status.ok()) {
      undo();
      return status;
    }
    // If the disk fails here, nobody knows which manifest it holds: both keep their data.
    TACO_RETURN_IF_ERROR(together(is_first() ? replace_manifest() : Status()));
    for (const std::string& name : former_data_) remove(name);
    return manifest_.serial;
  }

 private:
  std::string path_of(const std::string& name) const { return directory_ + "/" + name; }
  bool is_first() const { return source_.ranks == nullptr || source_.ranks->rank() == 0; }
  Status together(const Status& own) const {
    return source_.ranks == nullptr ? own : agree(*source_.ranks, own);
  }

  Status take_directory() {
    TACO_RETURN_IF_ERROR(prepare_directory());
    auto lock = files_.lock(directory_);
    if (!lock.ok()) return lock.status();
    lock_ = std::move(lock).value();
    return look_around();
  }

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
      // Data files of a manifest that cannot be read are kept until there is a better one.
      if (is_used || (has_manifest && !is_readable)) {
        former_data_.push_back(name);
      } else {
        remove(name);
      }
    }
    ++manifest_.serial;
    return {};
  }

  // The numbers of the save, of the store and of the files: each rank has those that follow the
  // files of the ranks before it.
  Status number() {
    const Layout& layout = *source_.layout;
    manifest_.store = source_.store;
    manifest_.page_bytes = layout.page_bytes();
    for (PageId page = 0; page < layout.pages(); ++page) {
      const bool holds = source_.holds == nullptr || source_.holds(page);
      if (holds && !layout.tensors_on(page).empty()) pages_.push_back(page);
    }
    files_in_all_ = own_files();
    if (source_.ranks == nullptr) return {};
    const std::uint64_t own[] = {manifest_.serial, manifest_.store, own_files()};
    const auto all = gather(*source_.ranks, std::as_bytes(std::span(own)));
    if (!all.ok()) return all.status();
    files_in_all_ = 0;
    for (std::size_t rank = 0; rank < all.value().size(); ++rank) {
      std::uint64_t given[3];
      std::memcpy(given, all.value()[rank].data(), sizeof(given));
      if (rank == 0) manifest_.serial = given[0];
      if (rank == 0) manifest_.store = given[1];
      if (rank == static_cast<std::size_t>(source_.ranks->rank())) first_file_ = files_in_all_;
      files_in_all_ += given[2];
    }
    return {};
  }

  std::size_t per_file() const { return std::max(source_.pages_per_file, 1u); }
  std::size_t own_files() const { return (pages_.size() + per_file() - 1) / per_file(); }

  Status write_pages() {
    AlignedMemory page(manifest_.page_bytes);
    for (std::size_t index = 0; index < own_files(); ++index) {
      const std::size_t first = index * per_file();
      const std::span<const PageId> part =
          std::span(pages_).subspan(first, std::min(per_file(), pages_.size() - first));
      TACO_RETURN_IF_ERROR(
          write_data(static_cast<std::uint32_t>(first_file_ + index), part, page.span()));
    }
    // The first rank's last with its manifest's.
    return is_first() ? Status() : files_.sync_directory(directory_);
  }

  // Collects what all ranks have written, for the first rank's manifest.
  Status collect() {
    std::vector<std::vector<Written>> all = {written_};
    if (source_.ranks != nullptr) {
      const auto given = gather(*source_.ranks, std::as_bytes(std::span(written_)));
      if (!given.ok()) return given.status();
      all.clear();
      for (const std::vector<std::byte>& bytes : given.value()) {
        all.emplace_back(bytes.size() / sizeof(Written));
        if (!bytes.empty()) std::memcpy(all.back().data(), bytes.data(), bytes.size());
      }
    }
    manifest_.pages.resize(source_.layout->pages());
    for (const std::vector<Written>& written : all) {
      const std::size_t first = manifest_.files.size();
      for (std::size_t i = 0; i < written.size(); ++i) {
        const auto file = static_cast<std::uint32_t>(first + i / per_file());
        if (i % per_file() == 0) manifest_.files.push_back(data_name(manifest_.serial, file));
        manifest_.pages[written[i].page] = {file, static_cast<std::uint32_t>(i % per_file()),
                                            written[i].checksum};
      }
    }
    return {};
  }

  Status write_data(std::uint32_t index, std::span<const PageId> pages, std::span<std::byte> page) {
    const std::string name = data_name(manifest_.serial, index);
    auto file = files_.open(path_of(name), OpenMode::kCreate, Caching::kDirect);
    if (!file.ok()) return file.status();
    own_names_.push_back(name);
    TACO_RETURN_IF_ERROR((*file)->reserve(page_place(pages.size(), page.size())));
    DataHeader header;
    header.kind = DataHeader::Kind::kCheckpoint;
    header.store = manifest_.store;
    header.page_bytes = page.size();
    header.pages = static_cast<std::uint32_t>(pages.size());
    header.index = index;
    header.count = static_cast<std::uint32_t>(files_in_all_);
    header.serial = manifest_.serial;
    encode_header(header, page.first<kHeaderBytes>());
    TACO_RETURN_IF_ERROR(write_fully(**file, page.first(kHeaderBytes), 0));
    for (std::uint32_t i = 0; i < pages.size(); ++i) {
      const PageId id = pages[i];
      TACO_RETURN_IF_ERROR(source_.read_page(id, page).with_prefix("saving: "));
      written_.push_back({id, checksum(page, {manifest_.store, id, manifest_.serial})});
      const Status written = write_fully(**file, page, page_place(i, page.size()));
      TACO_RETURN_IF_ERROR(written.with_prefix("saving " + source_.layout->describe(id) + ": "));
    }
    return (*file)->sync();
  }

  Status write_manifest() {
    TACO_RETURN_IF_ERROR(find_files_of_others());
    const Layout& layout = *source_.layout;
    manifest_.tensors.clear();
    for (std::size_t index = 0; index < layout.tensors().size(); ++index) {
      const PlacedTensor& tensor = layout.tensors()[index];
      if (tensor.removed()) continue;
      const bool known = index < source_.forms.size();
      manifest_.tensors.push_back({tensor, known ? source_.forms[index] : TensorForm()});
    }
    std::sort(manifest_.tensors.begin(), manifest_.tensors.end(),
              [](const SavedTensor& a, const SavedTensor& b) {
                return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
              });
    manifest_.note = source_.note;
    const std::string path = path_of(kProvisionalManifestName);
    TACO_RETURN_IF_ERROR(files_.remove(path));
    auto file = files_.open(path, OpenMode::kCreate, Caching::kKernel);
    if (!file.ok()) return file.status();
    TACO_RETURN_IF_ERROR(write_fully(**file, encode_manifest(manifest_), 0));
    TACO_RETURN_IF_ERROR((*file)->sync());
    // The names of the new files must last before the name that leads to them.
    return files_.sync_directory(directory_);
  }

  // A directory of the same name may be another one on another host.
  Status find_files_of_others() {
    for (std::size_t index = own_names_.size(); index < manifest_.files.size(); ++index) {
      const std::string path = path_of(manifest_.files[index]);
      const auto file = files_.open(path, OpenMode::kRead, Caching::kKernel);
      if (file.ok()) continue;
      return Status(Code::kInvalidArgument, "what another rank has saved is not here (" +
                                                file.status().message() + "): '" + directory_ +
                                                "' has to be one directory that all ranks see");
    }
    return {};
  }

  Status replace_manifest() {
    TACO_RETURN_IF_ERROR(files_.rename(path_of(kProvisionalManifestName), path_of(kManifestName)));
    // From here on the new checkpoint is what a reader finds, lasting or not.
    return files_.sync_directory(directory_);
  }

  void undo() {
    for (const std::string& name : own_names_) remove(name);
    if (is_first()) remove(kProvisionalManifestName);
  }

  void remove(const std::string& name) {
    const Status removed = files_.remove(path_of(name));
    if (!removed.ok()) TACO_LOG_WARNING("zerocache", "%s", removed.message().c_str());
  }

  FileSystem& files_;
  const std::string& directory_;
  const CheckpointSource& source_;
  std::unique_ptr<DirectoryLock> lock_;  // the first rank's
  Manifest manifest_;
  std::vector<PageId> pages_;  // this rank's
  std::size_t first_file_ = 0, files_in_all_ = 0;
  std::vector<std::string> own_names_;
  std::vector<Written> written_;
  std::vector<std::string> former_data_;  // to be removed once there is something better
};

}  // namespace

Result<std::uint64_t> save_checkpoint(FileSystem& files, const std::string& directory,
                                      const CheckpointSource& source) {
  return Save(files, directory, source).run();
}

}  // namespace taco::zerocache
