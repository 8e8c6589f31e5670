#include "zerocache/checkpoint/checkpoint.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "zerocache/checkpoint/checkpoint_names.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/pages/checksum.h"

namespace taco::zerocache {
namespace {

TensorForm form_of(const PlacedTensor& tensor, const Layout& layout, TensorForms forms) {
  const auto index = static_cast<std::size_t>(&tensor - layout.tensors().data());
  return index < forms.size() ? forms[index] : TensorForm();
}

// A tensor that is collected whole, to be handed out with its elements in another order.
class Reordered {
 public:
  explicit Reordered(const std::function<Status(const Checkpoint::Piece&)>& take) : take_(take) {}

  Status add(const SavedTensor& saved, const PlacedTensor& own, const TensorForm& form,
             std::size_t offset, std::span<const std::byte> bytes) {
    if (own_ != &own) {
      TACO_RETURN_IF_ERROR(hand_out());
      saved_ = &saved;
      own_ = &own;
      form_ = form;
      bytes_.assign(saved.bytes, std::byte{});  // pages that held nothing are zeros
    }
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }

  Status hand_out() {
    if (own_ == nullptr) return {};
    std::vector<std::byte> in_order(bytes_.size());
    reorder(saved_->form, bytes_, form_, in_order);
    return take_({*std::exchange(own_, nullptr), 0, in_order});
  }

 private:
  const std::function<Status(const Checkpoint::Piece&)>& take_;
  const SavedTensor* saved_ = nullptr;
  const PlacedTensor* own_ = nullptr;  // null: none
  TensorForm form_;
  std::vector<std::byte> bytes_;
};

}  // namespace

Result<Checkpoint> Checkpoint::open(FileSystem& files, const std::string& directory) {
  const std::string path = directory + "/" + kManifestName;
  auto file = files.open(path, OpenMode::kRead, Caching::kKernel);
  if (!file.ok()) return file.status().with_prefix(directory + " holds no checkpoint: ");
  const auto size = (*file)->size();
  if (!size.ok()) return size.status();
  // No manifest of a store that exists is as long; a damaged file may claim to be.
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  if (size.value() > kMaxBytes) return Status(Code::kResource, path + " is damaged");
  std::vector<std::byte> bytes(size.value());
  TACO_RETURN_IF_ERROR(read_fully(**file, bytes, 0));
  auto manifest = decode_manifest(bytes, path);
  if (!manifest.ok()) return manifest.status();
  return Checkpoint(files, directory, std::move(manifest).value());
}

Status Checkpoint::check(const Layout& layout, TensorForms forms, const MayStay& may_stay) const {
  const std::string here =
      "the checkpoint in " + directory_ + " is of another model or optimizer: ";
  const auto other = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, here + what);
  };
  std::unordered_set<std::string> saved;
  for (const SavedTensor& tensor : manifest_.tensors) {
    saved.insert(tensor.name);
    const PlacedTensor* const own = layout.find(tensor.name);
    if (own == nullptr && may_stay(tensor.name)) continue;
    if (own == nullptr) {
      return other("it has a tensor '" + tensor.name + "' of " + std::to_string(tensor.bytes) +
                   " bytes, which this one has not");
    }
    if (const TensorForm form = form_of(*own, layout, forms);
        form.known() && tensor.form.known() && !same_tensor(form, tensor.form)) {
      return other("its tensor '" + tensor.name + "' is " + described(tensor.form) +
                   ", this one's is " + described(form));
    }
    if (own->bytes != tensor.bytes) {
      return other("its tensor '" + tensor.name + "' has " + std::to_string(tensor.bytes) +
                   " bytes, this one's has " + std::to_string(own->bytes));
    }
  }
  for (const PlacedTensor& tensor : layout.tensors()) {
    if (!tensor.removed() && saved.count(tensor.name) == 0) {
      return other("it lacks tensor '" + tensor.name + "' of " + std::to_string(tensor.bytes) +
                   " bytes");
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
                        const Wants& wants, TensorForms forms, const MayStay& may_stay) const {
  TACO_RETURN_IF_ERROR(check(layout, forms, may_stay));
  struct Part {
    const SavedTensor* saved;
    const PlacedTensor* own;
    std::size_t offset;       // in it
    std::size_t from, bytes;  // on the page
    bool reordered;
  };
  const SavedTensor* asked = nullptr;  // the last that was asked for whole, and the answer
  bool whole_wanted = false;
  std::size_t next = 0;     // the first tensor that goes on at the page's start or later
  std::vector<Part> parts;  // of the page that are wanted
  const auto is_wanted = [&](const Part& part) {
    if (!part.reordered) return wants(*part.own, part.offset, part.bytes);
    if (asked != part.saved) whole_wanted = wants(*part.own, 0, part.saved->bytes);
    asked = part.saved;
    return whole_wanted;
  };
  const auto find_parts = [&](PageId page) {
    parts.clear();
    const std::uint64_t start = std::uint64_t{page} * manifest_.page_bytes;
    const std::uint64_t end = start + manifest_.page_bytes;
    for (; next < manifest_.tensors.size(); ++next) {
      const SavedTensor& saved = manifest_.tensors[next];
      if (saved.offset >= end) break;
      const std::uint64_t from = std::max(saved.offset, start);
      const std::uint64_t to = std::min(saved.offset + saved.bytes, end);
      if (const PlacedTensor* const own = layout.find(saved.name)) {
        const TensorForm form = form_of(*own, layout, forms);
        const bool reordered = form.known() && saved.form.known() && !same_order(form, saved.form);
        const Part part = {&saved, own, from - saved.offset, from - start, to - from, reordered};
        if (from < to && is_wanted(part)) parts.push_back(part);
      }
      if (saved.offset + saved.bytes > end) break;  // it goes on
    }
    return !parts.empty();
  };
  Reordered reordered(take);
  const Status visited =
      visit_pages(find_parts, [&](PageId, std::span<const std::byte> bytes) -> Status {
        for (const Part& part : parts) {
          const std::span<const std::byte> found = bytes.subspan(part.from, part.bytes);
          const TensorForm form = form_of(*part.own, layout, forms);
          TACO_RETURN_IF_ERROR(part.reordered
                                   ? reordered.add(*part.saved, *part.own, form, part.offset, found)
                                   : take({*part.own, part.offset, found}));
        }
        return {};
      });
  return visited.ok() ? reordered.hand_out() : visited;
}

}  // namespace taco::zerocache
