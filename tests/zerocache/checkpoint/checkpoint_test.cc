#include "zerocache/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/faulty_files.h"
#include "support/processes.h"
#include "support/saved_pages.h"
#include "support/temporary_directory.h"
#include "zerocache/checkpoint/checkpoint_names.h"
#include "zerocache/pages/state_layout.h"

namespace taco::zerocache {
namespace {

using testing::expect_save;
using testing::FaultyFiles;
using testing::FileCall;
using testing::layout_of_saves;
using testing::load_any;
using testing::Loaded;
using testing::save_number;
using testing::TemporaryDirectory;

FileSystem& real() { return FileSystem::real(); }

std::vector<std::string> names_in(const std::string& directory) {
  return std::move(real().list(directory)).value();
}

TEST(Checkpoint, IsLoadedAsItWasSaved) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  const auto saved = save_number(real(), directory / "new", 5, layout);
  ASSERT_TRUE(saved.ok()) << saved.status().message();
  EXPECT_EQ(saved.value(), 1u);
  expect_save(directory / "new", 5, layout);
  const auto opened = Checkpoint::open(real(), directory / "new");
  EXPECT_TRUE(opened.value().verify().ok());
  EXPECT_EQ(opened.value().manifest().files.size(), 2u);
}

TEST(Checkpoint, PagesOfWhichNothingIsWantedAreNotRead) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  ASSERT_TRUE(save_number(real(), directory.path(), 5, layout).ok());
  std::vector<std::uint64_t> reads;
  FaultyFiles watched([&](const FileCall& made) -> ssize_t {
    const bool of_pages = made.path.find("pages-") != std::string::npos;
    if (made.kind == FileCall::Kind::kRead && of_pages) reads.push_back(made.offset);
    return 0;
  });
  const auto opened = Checkpoint::open(watched, directory.path());
  ASSERT_TRUE(opened.ok());
  const auto load = [&](const Checkpoint::Wants& wants) {
    std::vector<std::string> taken;
    reads.clear();
    const auto take = [&](const Checkpoint::Piece& piece) {
      taken.push_back(piece.tensor.name + " " + std::to_string(piece.offset));
      return Status();
    };
    EXPECT_TRUE(opened.value().load(layout, take, wants).ok());
    return taken;
  };
  const auto all = load([](const PlacedTensor&, std::size_t, std::size_t) { return true; });
  const std::size_t all_reads = reads.size();
  const auto second = load([](const PlacedTensor& tensor, std::size_t offset, std::size_t bytes) {
    return tensor.name == "embedding" && offset == 4096 && bytes == 4096;
  });
  EXPECT_EQ(second, std::vector<std::string>{"embedding 4096"});
  EXPECT_EQ(reads.size(), 2u) << "the file's header, and the page";
  EXPECT_GT(all.size(), 6u);
  EXPECT_GT(all_reads, reads.size() + 3);
  EXPECT_TRUE(load([](const PlacedTensor&, std::size_t, std::size_t) { return false; }).empty());
  EXPECT_TRUE(reads.empty());
}

TEST(Checkpoint, ANewOneReplacesTheOldAndLeavesNothingOfIt) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  for (std::uint64_t save = 1; save <= 3; ++save) {
    ASSERT_TRUE(save_number(real(), directory.path(), save, layout).ok());
    expect_save(directory.path(), save, layout);
  }
  EXPECT_EQ(names_in(directory.path()),
            (std::vector<std::string>{kManifestName, data_name(3, 0), data_name(3, 1)}));
}

// Another page size, another order: the same tensors.
TEST(Checkpoint, IsLoadedIntoAnotherLayoutOfTheSameTensors) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(save_number(real(), directory.path(), 9, layout_of_saves(4096)).ok());
  expect_save(directory.path(), 9, layout_of_saves(16384));
  const Layout forwards = layout_of_saves();
  std::vector<TensorSpec> backwards;
  for (const PlacedTensor& tensor : forwards.tensors()) {
    backwards.push_back({tensor.name, tensor.bytes});
  }
  std::reverse(backwards.begin(), backwards.end());
  expect_save(directory.path(), 9, std::move(Layout::make(backwards, 4096)).value());
}

// Bytes 0, 1, 2, ... of one tensor, saved as `form` and loaded as `own`; nothing if that fails.
std::vector<int> saved_and_loaded(const TensorForm& form, const TensorForm& own, std::size_t bytes,
                                  Status* status) {
  const TemporaryDirectory directory;
  const Layout layout = std::move(Layout::make({{"before", 4000}, {"it", bytes}}, 4096)).value();
  const TensorForm forms[] = {{}, form}, own_forms[] = {{}, own};
  CheckpointSource source;
  source.layout = &layout;
  source.forms = forms;
  source.read_page = [&](PageId page, std::span<std::byte> to) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = std::byte((page * layout.page_bytes() + i - layout.tensors()[1].offset) & 0xFF);
    }
    return Status();
  };
  EXPECT_TRUE(save_checkpoint(real(), directory.path(), source).ok());
  std::vector<int> found(bytes, -1);
  const auto take = [&](const Checkpoint::Piece& piece) {
    if (piece.tensor.name != "it") return Status();
    for (std::size_t i = 0; i < piece.bytes.size(); ++i)
      found[piece.offset + i] = std::to_integer<int>(piece.bytes[i]);
    return Status();
  };
  const auto everything = [](const PlacedTensor&, std::size_t, std::size_t) { return true; };
  *status = Checkpoint::open(real(), directory.path())->load(layout, take, everything, own_forms);
  return status->ok() ? found : std::vector<int>();
}

TEST(Checkpoint, ElementsThatLieInAnotherOrderArePutInTheirs) {
  const TensorForm rows = {"int16", {2, 3}, {3, 1}}, columns = {"int16", {2, 3}, {1, 2}};
  Status status;
  EXPECT_EQ(saved_and_loaded(rows, columns, 12, &status),
            (std::vector<int>{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}));
  EXPECT_EQ(saved_and_loaded(columns, rows, 12, &status),
            (std::vector<int>{0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11}));
  // A stride of what has one element means nothing.
  const TensorForm one = {"int16", {1, 6}, {6, 1}}, same = {"int16", {1, 6}, {1, 1}};
  EXPECT_EQ(saved_and_loaded(one, same, 12, &status),
            (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  // Over several pages, and beside others on its first.
  const TensorForm large = {"int8", {3000, 5}, {5, 1}}, turned = {"int8", {3000, 5}, {1, 3000}};
  const std::vector<int> found = saved_and_loaded(large, turned, 15000, &status);
  ASSERT_EQ(found.size(), 15000u) << status.message();
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_EQ(found[i], static_cast<int>((i % 3000 * 5 + i / 3000) & 0xFF)) << i;
}

TEST(Checkpoint, OfAnotherDtypeOrShapeIsRefusedByTheNameOfTheTensor) {
  const TensorForm form = {"float16", {2, 3}, {3, 1}};
  Status status;
  saved_and_loaded(form, {"bfloat16", {2, 3}, {3, 1}}, 12, &status);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("its tensor 'it' is float16 of shape (2, 3), this one's is "
                                  "bfloat16 of shape (2, 3)"),
            std::string::npos)
      << status.message();
  saved_and_loaded(form, {"float16", {6}, {1}}, 12, &status);
  EXPECT_NE(status.message().find("this one's is float16 of shape (6,)"), std::string::npos);
  for (const auto& [one, other] : {std::pair(form, TensorForm()), std::pair(TensorForm(), form)}) {
    saved_and_loaded(one, other, 12, &status);
    EXPECT_TRUE(status.ok()) << status.message() << ": what is not known fits";
  }
}

TEST(Checkpoint, AnEmptyStoreHasOneToo) {
  const TemporaryDirectory directory;
  const Layout nothing = std::move(Layout::make({}, 4096)).value();
  ASSERT_TRUE(save_number(real(), directory.path(), 1, nothing).ok());
  expect_save(directory.path(), 1, nothing);
}

std::string refusal(const std::string& directory, const std::vector<TensorSpec>& tensors) {
  const auto opened = Checkpoint::open(real(), directory);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  const Layout layout = std::move(Layout::make(tensors, 4096)).value();
  const Status loaded = opened.value().load(layout, [](const auto&) {
    ADD_FAILURE() << "bytes of another model were handed out";
    return Status();
  });
  EXPECT_EQ(loaded.code(), Code::kInvalidArgument);
  return loaded.message();
}

TEST(Checkpoint, OfAnotherModelIsRefusedByTheNameOfTheTensor) {
  const TemporaryDirectory directory;
  const std::string& path = directory.path();
  const Layout small = std::move(Layout::make({{"a", 100}, {"b", 200}}, 4096)).value();
  ASSERT_TRUE(save_number(real(), path, 1, small).ok());
  const std::string here = "the checkpoint in " + path + " is of another model or optimizer: ";
  EXPECT_EQ(refusal(path, {{"a", 100}}),
            here + "it has a tensor 'b' of 200 bytes, which this one has not");
  EXPECT_EQ(refusal(path, {{"a", 100}, {"b", 204}}),
            here + "its tensor 'b' has 200 bytes, this one's has 204");
  EXPECT_EQ(refusal(path, {{"a", 100}, {"b", 200}, {"c", 8}}),
            here + "it lacks tensor 'c' of 8 bytes");
}

// A layout with the state of an optimizer, as long as its pages may be; element i of tensor t is
// 1000 t + i.
struct Stepped {
  explicit Stepped(std::size_t page_bytes, std::span<const StateKind> kinds = kAdam)
      : layout(
            std::move(Layout::make({{"a", 6000, 4}, {"b", 3000, 2}, {"c", 20000, 4}}, page_bytes))
                .value()) {
    const std::uint32_t all[] = {0, 1, 2};
    EXPECT_TRUE(StateLayout::append_to(layout, all, kinds).ok());
    range.resize(layout.bytes());
  }
  void fill() {
    for (std::uint32_t t = 0; t < layout.tensors().size(); ++t) {
      const PlacedTensor& tensor = layout.tensors()[t];
      for (std::uint32_t i = 0; i < tensor.bytes / 4; ++i) {
        const std::uint32_t value = 1000 * t + i;
        std::memcpy(range.data() + tensor.offset + 4 * i, &value, 4);
      }
    }
  }
  static constexpr StateKind kAdam[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};
  Layout layout;
  std::vector<std::byte> range;
};

TEST(Checkpoint, PagesThatHoldNothingAreNotSavedAndStateFitsOtherPageSizes) {
  const TemporaryDirectory directory;
  Stepped saved(8192);
  saved.fill();
  const PlacedTensor& unborn = *saved.layout.find("b/exp_avg");
  const auto unborn_pages = saved.layout.pages_of(unborn);
  CheckpointSource source;
  source.layout = &saved.layout;
  source.store = 7;
  std::size_t read = 0;
  source.read_page = [&](PageId page, std::span<std::byte> to) {
    ++read;
    std::memcpy(to.data(), saved.range.data() + std::size_t{page} * 8192, 8192);
    return Status();
  };
  source.holds = [&](PageId page) {
    return page < unborn_pages.first || page >= unborn_pages.first + unborn_pages.count;
  };
  ASSERT_TRUE(save_checkpoint(real(), directory.path(), source).ok());
  EXPECT_LT(read, 40u);  // of several hundred that are numbered
  const auto opened = Checkpoint::open(real(), directory.path());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_TRUE(opened.value().verify().ok());
  for (const std::size_t page_bytes : {4096, 8192, 65536}) {
    Stepped loaded(page_bytes), expected(page_bytes);
    expected.fill();
    const PlacedTensor& zeros = *expected.layout.find("b/exp_avg");
    std::memset(expected.range.data() + zeros.offset, 0, zeros.bytes);
    const Status status = opened.value().load(loaded.layout, [&](const Checkpoint::Piece& piece) {
      std::memcpy(loaded.range.data() + piece.tensor.offset + piece.offset, piece.bytes.data(),
                  piece.bytes.size());
      return Status();
    });
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(loaded.range == expected.range) << page_bytes;
  }
}

TEST(Checkpoint, OfAnotherOptimizerIsRefusedByTheNameOfItsState) {
  const TemporaryDirectory directory;
  Stepped adam(4096);
  ASSERT_TRUE(save_number(real(), directory.path(), 1, adam.layout).ok());
  const auto opened = Checkpoint::open(real(), directory.path());
  ASSERT_TRUE(opened.ok());
  const StateKind lion[] = {StateKind::kExpAvg};
  const StateKind sgd[] = {StateKind::kMomentumBuffer};
  const auto refusal = [&](std::span<const StateKind> kinds) {
    const Status status = opened.value().check(Stepped(4096, kinds).layout);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(refusal(lion).find("it has a tensor 'a/exp_avg_sq' of 6000 bytes"), std::string::npos);
  EXPECT_NE(refusal(sgd).find("it has a tensor 'a/exp_avg' of 6000 bytes"), std::string::npos);
  EXPECT_TRUE(opened.value().check(Stepped(65536).layout).ok());
}

TEST(Checkpoint, ADirectoryWithoutOneSaysSo) {
  const TemporaryDirectory directory;
  for (const std::string& path : {directory.path(), directory / "missing"}) {
    const auto opened = Checkpoint::open(real(), path);
    EXPECT_EQ(opened.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(opened.status().message().find(path + " holds no checkpoint: "), 0u)
        << opened.status().message();
  }
}

// Every byte of every file counts: flipped, cut off or exchanged, it is noticed by name.
TEST(Checkpoint, DamageAnywhereIsFoundAndNamed) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  ASSERT_TRUE(save_number(real(), directory.path(), 1, layout).ok());
  for (const std::string& name : names_in(directory.path())) {
    const std::string path = directory / name;
    const auto size = std::filesystem::file_size(path);
    for (std::uintmax_t at = 0; at < size; at += std::max<std::uintmax_t>(size / 37, 1)) {
      // The rest of a header's block is not used.
      if (name != kManifestName && at >= 60 && at < 4096) continue;
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(byte ^ 0x10));
      file.flush();
      const Loaded loaded = load_any(real(), directory.path(), layout);
      EXPECT_NE(loaded.problem.find(path), std::string::npos)
          << "byte " << at << " of " << name << ": " << loaded.problem;
      file.seekp(static_cast<std::streamoff>(at));
      file.put(static_cast<char>(byte));
    }
    std::filesystem::resize_file(path, size - 1);
    EXPECT_NE(load_any(real(), directory.path(), layout).problem.find(path), std::string::npos);
    std::filesystem::remove(path);
    const Loaded without = load_any(real(), directory.path(), layout);
    EXPECT_TRUE(!without.exists || without.problem.find(path) != std::string::npos);
    ASSERT_TRUE(save_number(real(), directory.path(), 1, layout).ok());
    std::filesystem::remove_all(directory.path());
    std::filesystem::create_directory(directory.path());
    ASSERT_TRUE(save_number(real(), directory.path(), 1, layout).ok());
  }
}

TEST(Checkpoint, DamageNamesThePageAndItsTensor) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  ASSERT_TRUE(save_number(real(), directory.path(), 1, layout).ok());
  const std::string path = directory / data_name(1, 0);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(4096 + 4096 + 5).put(1);
  EXPECT_EQ(load_any(real(), directory.path(), layout).problem,
            "page 1 (embedding): " + path +
                " gives other bytes as its page 1 than those that were saved");
}

TEST(Checkpoint, FilesOfAnotherSaveAreNotTakenForItsOwn) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  ASSERT_TRUE(save_number(real(), directory.path(), 1, layout).ok());
  const std::string old = directory / data_name(1, 0), kept = directory / "kept";
  std::filesystem::copy_file(old, kept);
  ASSERT_TRUE(save_number(real(), directory.path(), 2, layout).ok());
  std::filesystem::rename(kept, directory / data_name(2, 0));
  const Loaded loaded = load_any(real(), directory.path(), layout);
  EXPECT_NE(loaded.problem.find("is not the file that the manifest beside it means"),
            std::string::npos)
      << loaded.problem;
}

TEST(Checkpoint, WhatInterruptedSavesLeftIsRemovedByTheNext) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  ASSERT_TRUE(save_number(real(), directory.path(), 1, layout).ok());
  std::ofstream(directory / data_name(7, 3)) << "half";
  std::ofstream(directory / kProvisionalManifestName) << "half";
  std::ofstream(directory / "pages-of-a-user.data") << "mine";
  expect_save(directory.path(), 1, layout);
  const auto saved = save_number(real(), directory.path(), 2, layout);
  EXPECT_EQ(saved.value(), 8u) << "no name is used twice";
  EXPECT_EQ(names_in(directory.path()),
            (std::vector<std::string>{kManifestName, data_name(8, 0), data_name(8, 1),
                                      "pages-of-a-user.data"}));
}

TEST(Checkpoint, AFullDiskLeavesTheOneBefore) {
  const TemporaryDirectory directory;
  const std::string disk = directory.path();
  const std::vector<int> statuses = testing::run_processes({.count = 1}, [&](auto&) {
    const Layout layout = layout_of_saves();
    // Room for one checkpoint and a half.
    if (!testing::mount_small_disk(disk, layout.bytes() * 3 / 2 + 12 * 4096)) return;
    ASSERT_TRUE(save_number(real(), disk, 1, layout).ok());
    const auto before = names_in(disk);
    std::ofstream(disk + "/filler") << std::string(layout.bytes() / 2, 'x');
    const auto failed = save_number(real(), disk, 2, layout);
    EXPECT_EQ(failed.status().code(), Code::kResource);
    EXPECT_NE(failed.status().message().find("No space left on device"), std::string::npos)
        << failed.status().message();
    std::filesystem::remove(disk + "/filler");
    EXPECT_EQ(names_in(disk), before) << "the failed save left something";
    expect_save(disk, 1, layout);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(Checkpoint, AReadOnlyDirectoryIsNamed) {
  const TemporaryDirectory directory;
  const std::string disk = directory.path();
  const std::vector<int> statuses = testing::run_processes({.count = 1}, [&](auto&) {
    const Layout layout = layout_of_saves();
    if (!testing::mount_small_disk(disk, 1 << 20)) return;
    ASSERT_TRUE(save_number(real(), disk, 1, layout).ok());
    if (!testing::make_read_only(disk)) return;
    for (const std::string& path : {disk, disk + "/new"}) {
      const auto failed = save_number(real(), path, 2, layout);
      EXPECT_EQ(failed.status().code(), Code::kInvalidArgument);
      EXPECT_NE(failed.status().message().find(path), std::string::npos)
          << failed.status().message();
    }
    expect_save(disk, 1, layout);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(Checkpoint, TwoSavesIntoOneDirectoryDoNotMix) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  const auto lock = real().lock(directory.path());
  ASSERT_TRUE(lock.ok());
  const auto saved = save_number(real(), directory.path(), 1, layout);
  EXPECT_NE(saved.status().message().find("is in use by this process"), std::string::npos)
      << saved.status().message();
}

// Whichever call of a save fails: what was there before stays, and the next save works.
TEST(Checkpoint, AnErrorOfTheDiskAtAnyPointLeavesTheOneBefore) {
  const Layout layout = layout_of_saves();
  bool all_passed = false;
  for (int failing = 0; !all_passed; ++failing) {
    SCOPED_TRACE("call " + std::to_string(failing));
    const TemporaryDirectory directory;
    ASSERT_TRUE(save_number(real(), directory.path(), 1, layout).ok());
    int call = 0;
    FileCall failed = {FileCall::Kind::kOpen, ""};
    FaultyFiles files([&](const FileCall& made) -> ssize_t {
      if (call++ != failing) return 0;
      failed = made;
      return -EIO;
    });
    const auto saved = save_number(files, directory.path(), 2, layout);
    all_passed = call <= failing;
    const Loaded loaded = load_any(real(), directory.path(), layout);
    EXPECT_EQ(loaded.problem, "");
    if (saved.ok()) {
      EXPECT_EQ(loaded.save, 2u);
      // Only what could wait was left out: what reads and removes old files.
      EXPECT_TRUE(all_passed || failed.kind == FileCall::Kind::kRemove ||
                  failed.kind == FileCall::Kind::kOpen || failed.kind == FileCall::Kind::kRead)
          << static_cast<int>(failed.kind) << " " << failed.path;
    } else {
      EXPECT_NE(saved.status().message().find("Input/output error"), std::string::npos);
    }
    ASSERT_TRUE(save_number(real(), directory.path(), 3, layout).ok());
    expect_save(directory.path(), 3, layout);
  }
}

TEST(Checkpoint, ASourceThatFailsEndsTheSaveWithItsReason) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  ASSERT_TRUE(save_number(real(), directory.path(), 1, layout).ok());
  CheckpointSource source;
  source.layout = &layout;
  source.read_page = [](PageId page, std::span<std::byte>) {
    return page < 3 ? Status() : Status(Code::kResource, "page 3 is damaged");
  };
  const auto saved = save_checkpoint(real(), directory.path(), source);
  EXPECT_EQ(saved.status().message(), "saving: page 3 is damaged");
  expect_save(directory.path(), 1, layout);
}

}  // namespace
}  // namespace taco::zerocache
