// Pages that lie at another address in every use, none where another ends, and are full of 0xFF
// before they are written.
// Bytes written in a use that said it only reads are lost, and a page that holds nothing reads as
// 0xFF; so does one that a use has said to be the last of. Test support.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zerocache/pages/layout.h"
#include "zerocache/pages/page_uses.h"

namespace taco::testing {

class MovingPages : public zerocache::PageUses {
 public:
  using PageId = zerocache::PageId;
  using Tier = zerocache::Tier;

  explicit MovingPages(std::size_t page_bytes) : page_bytes_(page_bytes) {}

  Status begin(zerocache::OperatorKey key, std::span<const zerocache::Access> accesses) override {
    if (fail_at_ == begun_++) return Status(fails_with_, "no page today");
    if (open_.size() >= room_) {
      ++refused_;
      return Status(Code::kInvalidArgument, "no room beside what is in use");
    }
    EXPECT_EQ(open_.count(key), 0u) << "used twice at once";
    open_[key].assign(accesses.begin(), accesses.end());
    max_open_ = std::max(max_open_, open_.size());
    for (zerocache::Access& access : open_[key]) {
      if (access.anywhere) access.tier = tier_for(access.page);
      Used& used = frames_[{access.page, access.tier}];
      if (used.uses++ > 0) continue;
      used.frame = new_frame();
      const auto content = pages_.find(access.page);
      if (access.reads && content != pages_.end()) {
        std::memcpy(used.frame.get(), content->second.get(), page_bytes_);
      }
    }
    keys_.push_back(key);
    return {};
  }

  void end(zerocache::OperatorKey key) override {
    const auto use = open_.find(key);
    ASSERT_NE(use, open_.end());
    for (const zerocache::Access& access : use->second) {
      const auto used = frames_.find({access.page, access.tier});
      used->second.written |= access.writes;
      used->second.last |= access.last;
      if (--used->second.uses > 0) continue;
      if (used->second.written) pages_[access.page] = std::move(used->second.frame);
      if (used->second.last) pages_.erase(access.page);
      frames_.erase(used);
    }
    open_.erase(use);
  }

  std::byte* address(PageId page, Tier tier) const override {
    return frames_.at({page, tier}).frame.get();
  }
  Tier tier_of(PageId page) const override {
    return frames_.contains({page, Tier::kDevice}) ? Tier::kDevice : Tier::kHost;
  }
  bool has_content(PageId page) const override { return pages_.count(page) > 0; }

  // The use of that number fails, counted from now on.
  void fail_at(std::size_t use, Code with = Code::kResource) {
    fail_at_ = begun_ + use;
    fails_with_ = with;
  }
  // Uses that may be open at a time: where they are, another is refused.
  void room_for(std::size_t uses) { room_ = uses; }
  std::size_t refused() const { return refused_; }
  void write(const zerocache::PlacedTensor& tensor, const void* from) {
    each(tensor, [&](std::byte* at, std::size_t first, std::size_t bytes) {
      std::memcpy(at, static_cast<const std::byte*>(from) + first, bytes);
    });
  }
  void read(const zerocache::PlacedTensor& tensor, void* to) {
    each(tensor, [&](const std::byte* at, std::size_t first, std::size_t bytes) {
      std::memcpy(static_cast<std::byte*>(to) + first, at, bytes);
    });
  }
  // Keys of all uses, as they began.
  const std::vector<zerocache::OperatorKey>& keys() const { return keys_; }
  std::size_t open() const { return open_.size(); }
  std::size_t max_open() const { return max_open_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using Frame = std::unique_ptr<std::byte, Free>;
  struct Used {
    Frame frame;
    int uses = 0;
    bool written = false, last = false;
  };

  // The tier of a page that may be anywhere: where it is in use, or now here, now there.
  Tier tier_for(PageId page) const {
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      if (frames_.contains({page, tier})) return tier;
    }
    return begun_ % 2 == 0 ? Tier::kDevice : Tier::kHost;
  }

  Frame new_frame() const {
    constexpr std::size_t kApart = 4096;
    Frame frame(static_cast<std::byte*>(std::aligned_alloc(4096, page_bytes_ + kApart)));
    std::memset(frame.get(), 0xFF, page_bytes_);
    return frame;
  }

  template <class Visit>
  void each(const zerocache::PlacedTensor& tensor, const Visit& visit) {
    for (std::size_t done = 0; done < tensor.bytes;) {
      const std::uint64_t at = tensor.offset + done;
      const std::size_t place = at % page_bytes_;
      const std::size_t bytes = std::min(tensor.bytes - done, page_bytes_ - place);
      Frame& frame = pages_[static_cast<PageId>(at / page_bytes_)];
      if (frame == nullptr) frame = new_frame();
      visit(frame.get() + place, done, bytes);
      done += bytes;
    }
  }

  const std::size_t page_bytes_;
  std::map<PageId, Frame> pages_;
  std::map<std::pair<PageId, Tier>, Used> frames_;
  std::map<zerocache::OperatorKey, std::vector<zerocache::Access>> open_;
  std::vector<zerocache::OperatorKey> keys_;
  std::size_t begun_ = 0, fail_at_ = static_cast<std::size_t>(-1), max_open_ = 0;
  std::size_t room_ = static_cast<std::size_t>(-1), refused_ = 0;
  Code fails_with_ = Code::kResource;
};

}  // namespace taco::testing
