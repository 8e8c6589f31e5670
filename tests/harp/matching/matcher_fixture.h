// The Matcher alone, over a link that only writes down what it is told. Included by its tests only.
#pragma once

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "harp/matching/requests_fixture.h"

namespace taco::harp {

class FakeLink final : public Link {
 public:
  std::size_t eager_limit() const override { return 1000; }
  void eager(SendRequest& request) override { eagers.push_back(&request); }
  void bulk(SendRequest& request, SlotId slot, bool offered) override {
    bulks.push_back({&request, slot});
    if (offered) offered_bulks.push_back(&request);
  }
  void withdraw(SendRequest& request) override { withdrawn.push_back(&request); }
  void forget(SlotId slot) override { forgotten.push_back(slot); }
  void want(RecvRequest& request) override { wants.push_back(want_of(request)); }
  void offer(const SendRequest& request) override { offers.push_back(offer_of(request)); }
  void control(const Control& control) override { controls.push_back(control); }
  void notice(std::span<const std::byte>) override {}
  void release(Staging&) override {}
  bool busy() const override { return false; }
  void break_off(const std::string& how) override { broken.push_back(how); }
  void leave() override {}

  template <class Kind>
  std::size_t count() const {
    return static_cast<std::size_t>(
        std::count_if(controls.begin(), controls.end(),
                      [](const Control& one) { return std::holds_alternative<Kind>(one); }));
  }
  template <class Kind>
  Kind first() const {
    for (const Control& one : controls) {
      if (const Kind* found = std::get_if<Kind>(&one)) return *found;
    }
    ADD_FAILURE() << "nothing of this kind was said";
    return {};
  }
  // The last thing said, which must be of this kind.
  template <class Kind>
  Kind last() const {
    EXPECT_TRUE(!controls.empty() && std::holds_alternative<Kind>(controls.back()));
    return std::get<Kind>(controls.back());
  }

  std::vector<SendRequest*> eagers, withdrawn, offered_bulks;
  std::vector<std::pair<SendRequest*, SlotId>> bulks;
  std::vector<SlotId> forgotten;
  std::vector<Want> wants;
  std::vector<Offer> offers;
  std::vector<Control> controls;
  std::vector<std::string> broken;
};

class FakeObserver final : public Observer {
 public:
  void on_unmatched_st(PeerId, const MessageKey& key, std::uint64_t, bool) override {
    unmatched.push_back(key.tag);
  }
  void on_mismatch_st(PeerId, const MessageKey&, std::uint64_t ours,
                      std::uint64_t theirs) override {
    mismatches.push_back({ours, theirs});
  }
  void on_peer_lost_st(PeerId, const Status&) override { ++lost; }
  void on_peer_left_st(PeerId) override { ++left; }
  void on_notice_st(PeerId, std::span<const std::byte>) override {}
  std::vector<std::uint64_t> unmatched;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> mismatches;
  int lost = 0, left = 0;
};

class MatcherTest : public RequestsTest {
 protected:
  MatcherTest() : RequestsTest(3, 1 << 20) {
    host_.observer = &observer_;
    matcher_.attach(link_);
  }
  void arrive(std::uint64_t tag, std::size_t bytes, std::uint64_t signature = 1) {
    matcher_.on_eager({9, tag}, signature, std::span(data_).first(bytes));
  }
  void run() { host_.completions.run(&observer_); }

  FakeObserver observer_;
  FakeLink link_;
};

}  // namespace taco::harp
