// Checkpoints that last. A directory holds one, whole, at any moment from the first save on:
// whatever happens during a save, a kill or a power failure, what is found afterwards is the
// checkpoint of that save or the one before; and once a save has returned, it is that one.
//
// So a save never touches the files of the one before. It writes data files under new names and
// the manifest under a provisional one, and makes all of them and their names last; then it renames
// the manifest over the old one, which happens at once or not at all, makes that last too, and only
// then removes the old data.
//
// Tensors are found again by name, and have to be of the same dtype and shape: a layout of other
// page sizes or another order takes them just as well, and so do tensors whose elements lie in
// another order (other strides); another model's are refused, or those of another optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "zerocache/checkpoint/manifest.h"
#include "zerocache/disk/file_system.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"
#include "zerocache/pages/tensor_form.h"
#include "zerocache/ranks/collectives.h"

namespace taco::zerocache {

struct CheckpointSource {
  const Layout* layout = nullptr;
  TensorForms forms;
  StoreId store = 0;
  // Fills in the bytes of one page; asked once for each page that is saved, in order. A failure
  // ends the save.
  std::function<Status(PageId, std::span<std::byte>)> read_page;
  // Whether a page holds anything; null: every page does. Others are not saved, nor is one that no
  // tensor touches.
  std::function<bool(PageId)> holds;
  std::string note;  // whatever else belongs to the checkpoint
  std::uint32_t pages_per_file = 4096;
  // Unless null, these save one checkpoint together, in a directory that all of them see: the same
  // layout, of each the pages that it holds, and rank 0's number of the store and note. What is
  // saved is as if one rank had held it all. Each page is held by one rank.
  Collectives* ranks = nullptr;
};

// Makes the directory if only the last part of its path is missing. Returns the number of the save.
// After a failure the directory holds the checkpoint that it held before. kInvalidArgument for a
// directory that cannot be written or into which another process saves; kResource if the disk is
// full or fails. Where several ranks save, all have saved or all fail.
Result<std::uint64_t> save_checkpoint(FileSystem& files, const std::string& directory,
                                      const CheckpointSource& source);

class Checkpoint {
 public:
  // Reads the manifest. kInvalidArgument if the directory holds no checkpoint, kResource if it is
  // damaged.
  static Result<Checkpoint> open(FileSystem& files, const std::string& directory);

  const Manifest& manifest() const { return manifest_; }
  // Whether a tensor that was saved, and is not in the layout, may be left where it is.
  using MayStay = std::function<bool(const std::string& name)>;
  // kInvalidArgument, naming the tensor, unless `layout` has the same tensors: of the same lengths,
  // and of the same dtype and shape where both are known.
  Status check(const Layout& layout, TensorForms forms = {}, const MayStay& may_stay = none) const;

  // Bytes of a tensor, from `offset` on; read from the disk and verified.
  struct Piece {
    const PlacedTensor& tensor;  // of the layout given
    std::size_t offset;
    std::span<const std::byte> bytes;
  };
  // check(), then every byte of every tensor, in the order in which they were saved; but nothing of
  // pages that held nothing then, which are zeros. kResource names file, page and tensors where
  // something is damaged; what was handed out until then is to be thrown away.
  // Pages of which `wants` has nothing (bytes of a tensor from an offset on) are not read. Tensors
  // whose elements lie in another order here are asked for and handed out whole.
  using Wants = std::function<bool(const PlacedTensor&, std::size_t offset, std::size_t bytes)>;
  Status load(const Layout& layout, const std::function<Status(const Piece&)>& take,
              const Wants& wants = everything, TensorForms forms = {},
              const MayStay& may_stay = none) const;
  // Reads everything and hands out nothing.
  Status verify() const;

 private:
  Checkpoint(FileSystem& files, std::string directory, Manifest manifest)
      : files_(&files), directory_(std::move(directory)), manifest_(std::move(manifest)) {}
  static bool none(const std::string&) { return false; }
  static bool everything(const PlacedTensor&, std::size_t, std::size_t) { return true; }
  Status visit_pages(const std::function<bool(PageId)>& wants,
                     const std::function<Status(PageId, std::span<const std::byte>)>& visit) const;
  Result<std::unique_ptr<File>> open_data(std::uint32_t index) const;
  std::string describe(PageId page) const;

  FileSystem* files_;
  std::string directory_;
  Manifest manifest_;
};

}  // namespace taco::zerocache
