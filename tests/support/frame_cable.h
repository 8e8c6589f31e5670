// A cable with a FramePort at each end, in memory: what one sends the other receives, in order, up
// to as many frames as there are slots. Tests pull it, fill it, and look at what is on it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harp/drivers/frames/frame_port.h"

namespace taco::harp {

class FrameCable {
 public:
  using Bytes = std::vector<std::byte>;

  class End final : public FramePort {
   public:
    End(FrameCable& cable, int side) : cable_(cable), side_(side) {
      info_.name = side == 0 ? "left" : "right";
      info_.mac = {std::byte{2}, {}, {}, {}, {}, static_cast<std::byte>(side + 1)};
    }

    const FramePortInfo& info() const override { return info_; }
    std::size_t send_st(std::span<const TxFrame> frames) override {
      std::size_t sent = 0;
      for (const TxFrame& frame : frames) {
        if (!cable_.is_up || cable_.to_[1 - side_].size() >= cable_.slots) break;
        Bytes bytes(frame.headers.begin(), frame.headers.begin() + frame.header_bytes);
        for (const IoSlice& slice : frame.slices) {
          const auto* const data = static_cast<const std::byte*>(slice.data);
          bytes.insert(bytes.end(), data, data + slice.bytes);
        }
        ++sent;
        ++counters_.frames_sent;
        if (!cable_.loses || !cable_.loses(bytes)) cable_.put(1 - side_, std::move(bytes));
      }
      return sent;
    }
    std::size_t receive_st(std::span<RxFrame> frames) override {
      std::deque<Bytes>& queue = cable_.to_[side_];
      std::size_t filled = 0;
      while (filled < frames.size() && !queue.empty()) {
        EXPECT_LT(held_.size(), kMaxHeld);
        held_.push_back(std::move(queue.front()));
        queue.pop_front();
        frames[filled++] = {held_.back(), false, cable_.strips && take_tag_out(held_.back())};
      }
      counters_.frames_received += filled;
      return filled;
    }
    void release_st() override { held_.clear(); }
    bool is_up_st() override { return cable_.is_up; }
    FramePortCounters counters() const override {
      ++times_counted;
      return counters_;
    }

    void set_in_memory() { info_.in_memory = true; }
    void add_overflow() { ++counters_.overflows; }

    mutable int times_counted = 0;

   private:
    static constexpr std::ptrdiff_t kTagAt = 12, kTagBytes = 4;

    // True: one of a VLAN.
    static bool take_tag_out(Bytes& frame) {
      if (frame.at(kTagAt) != std::byte{0x81} || frame.at(kTagAt + 1) != std::byte{0}) return false;
      const bool is_vlan = (frame.at(kTagAt + 2) & std::byte{0x0f}) != std::byte{0} ||
                           frame.at(kTagAt + 3) != std::byte{0};
      frame.erase(frame.begin() + kTagAt, frame.begin() + kTagAt + kTagBytes);
      return is_vlan;
    }

    FrameCable& cable_;
    const int side_;
    FramePortInfo info_;
    FramePortCounters counters_;
    std::deque<Bytes> held_;
  };

  FrameCable() : ends{std::make_shared<End>(*this, 0), std::make_shared<End>(*this, 1)} {}

  void put(int side, Bytes frame) { to_[side].push_back(std::move(frame)); }
  std::deque<Bytes>& on_the_way_to(int side) { return to_[side]; }

  bool is_up = true;
  std::size_t slots = 64;
  bool strips = false;  // its ends take tags of VLANs out of frames
  std::function<bool(const Bytes& frame)> loses;
  const std::array<std::shared_ptr<End>, 2> ends;

 private:
  std::array<std::deque<Bytes>, 2> to_;
};

}  // namespace taco::harp
