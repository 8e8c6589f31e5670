// Steps over pages against the same steps over plain arrays: the same bits, whatever the pages, the
// threads and what else lies beside.
#include "zerocache/steps/optimizer_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/half.h"
#include "support/paged_model.h"
#include "zerocache/mover/tensor_bytes.h"

namespace taco::zerocache {
namespace {

using testing::Floats;
using testing::Halves;
using testing::PagedModel;
using testing::Plain;
using Model = testing::PlainModel;

constexpr StateKind kAllKinds[] = {StateKind::kExpAvg, StateKind::kExpAvgSq,
                                   StateKind::kMomentumBuffer};

// The same model on pages.
class Paged : public PagedModel {
 public:
  Paged(const Model& model, std::size_t page_bytes, unsigned threads,
        std::span<const StateKind> kinds = kAllKinds)
      : PagedModel(model, page_bytes, threads, kinds) {}

  Floats state(const std::string& name, std::size_t count) {
    Floats values(count);
    EXPECT_TRUE(read_bytes(pages(), layout().page_bytes(), *layout().find(name), Tier::kHost, 0,
                           std::as_writable_bytes(std::span(values)))
                    .ok());
    return values;
  }
  // Compares everything, bit by bit.
  void expect_is(Model& model, bool momentum = false) {
    for (std::size_t i = 0; i < model.size(); ++i) {
      Plain& plain = model[i];
      SCOPED_TRACE(plain.name);
      if (plain.size() == 0) continue;
      if (plain.half) {
        Halves halves(plain.size());
        pages().read(layout().tensors()[i], halves.data());
        EXPECT_TRUE(halves == plain.halves);
      } else {
        Floats values(plain.size());
        pages().read(layout().tensors()[i], values.data());
        EXPECT_TRUE(same(values, plain.values));
      }
      EXPECT_TRUE(
          same(state(plain.name + (momentum ? "/momentum_buffer" : "/exp_avg"), plain.size()),
               plain.first));
      if (momentum) continue;
      EXPECT_TRUE(same(state(plain.name + "/exp_avg_sq", plain.size()), plain.second));
    }
  }

 private:
  static bool same(const Floats& a, const Floats& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
};

StepConstants adamw(int t) { return kernels::adam_step({.weight_decay = 0.1}, t); }

// Each parameter has steps of its own count, and some have none this time.
TEST(OptimizerStream, StepsAreThoseOfPlainArraysWhateverPagesAndThreads) {
  for (const std::size_t page : {4096, 16384, 262144}) {
    for (const unsigned threads : {1u, 2u, 5u}) {
      SCOPED_TRACE(std::to_string(page) + " bytes, threads: " + std::to_string(threads));
      Model model(static_cast<std::uint32_t>(page));
      Paged paged(model, page, threads);
      std::vector<int> steps(model.size());
      for (int round = 0; round < 4; ++round) {
        std::vector<Update> updates;
        for (std::uint32_t i = 0; i < model.size(); ++i) {
          if ((i + static_cast<std::uint32_t>(round)) % 4 == 0) continue;
          const StepConstants step = adamw(++steps[i]);
          updates.insert(updates.begin() + (i % 2 == 0 ? 0 : updates.size() / 2),
                         model.update(i, step));
          model[i].step(step);
        }
        const Status stepped = paged.stream().step(updates);
        ASSERT_TRUE(stepped.ok()) << stepped.message();
        model.new_gradients();
        updates.clear();
      }
      paged.expect_is(model);
    }
  }
}

TEST(OptimizerStream, SgdAndLionHaveTheirOwnState) {
  Model model(1), other = model, third = model;
  const StateKind momentum[] = {StateKind::kMomentumBuffer}, average[] = {StateKind::kExpAvg};
  Paged sgd(model, 4096, 2, momentum), lion(other, 4096, 2, average), none(third, 4096, 2, {});
  const kernels::SgdOptions options{.lr = 0.1, .momentum = 0.9, .nesterov = true};
  for (int t = 1; t <= 3; ++t) {
    std::vector<Update> sgd_updates, lion_updates, plain_updates;
    for (std::uint32_t i = 0; i < model.size(); ++i) {
      const StepConstants by_sgd = kernels::sgd_step(options, t);
      const StepConstants by_lion = kernels::lion_step({.weight_decay = 0.1});
      const StepConstants plainly = kernels::sgd_step({.lr = 0.1}, t);
      sgd_updates.push_back(model.update(i, by_sgd));
      lion_updates.push_back(other.update(i, by_lion));
      plain_updates.push_back(third.update(i, plainly));
      model[i].step(by_sgd);
      other[i].step(by_lion);
      third[i].step(plainly);
    }
    ASSERT_TRUE(sgd.stream().step(sgd_updates).ok());
    ASSERT_TRUE(lion.stream().step(lion_updates).ok());
    ASSERT_TRUE(none.stream().step(plain_updates).ok());
  }
  sgd.expect_is(model, true);
  for (std::uint32_t i = 0; i < model.size(); ++i) {
    if (other[i].half || other[i].size() == 0) continue;
    Floats values(other[i].size());
    lion.pages().read(lion.layout().tensors()[i], values.data());
    EXPECT_TRUE(values == other[i].values);
    EXPECT_TRUE(lion.state(other[i].name + "/exp_avg", values.size()) == other[i].first);
    none.pages().read(none.layout().tensors()[i], values.data());
    EXPECT_TRUE(values == third[i].values);
  }
}

// A page of state holds nothing before the first step of something on it.
TEST(OptimizerStream, WhatHasNoUpdateGetsNoState) {
  Model model(2);
  Paged paged(model, 4096, 2);
  const std::uint32_t only = 0;
  const Update update = model.update(only, adamw(1));
  ASSERT_TRUE(paged.stream().step({&update, 1}).ok());
  const Layout& layout = paged.layout();
  const PlacedTensor& stepped = *layout.find("p0/exp_avg");
  for (const PlacedTensor& tensor : layout.tensors()) {
    if (tensor.name.find("/exp_avg") == std::string::npos) continue;
    const auto run = layout.pages_of(tensor), with = layout.pages_of(stepped);
    for (PageId page = run.first; page < run.first + run.count; ++page) {
      const bool shared = page >= with.first && page < with.first + with.count;
      if (tensor.name.ends_with("_sq")) continue;
      EXPECT_EQ(paged.pages().has_content(page), shared) << tensor.name;
    }
  }
  EXPECT_FALSE(
      paged.pages().has_content(layout.pages_of(*layout.find("p0/momentum_buffer")).first));
}

TEST(OptimizerStream, ABfloatParameterThatWasChangedIsSteppedFromItsNewValue) {
  Model model(3);
  Paged paged(model, 4096, 1);
  const std::uint32_t half = 1;
  Plain& plain = model[half];
  ASSERT_TRUE(plain.half);
  for (int t = 1; t <= 3; ++t) {
    const Update update = model.update(half, adamw(t));
    plain.step(update.step);
    ASSERT_TRUE(paged.stream().step({&update, 1}).ok());
    for (std::size_t i = 0; i < plain.size(); i += 2) {
      plain.values[i] = static_cast<float>(t);
      plain.halves[i] = kernels::float_to_bf16(plain.values[i]);
    }
    paged.pages().write(paged.layout().tensors()[half], plain.halves.data());
  }
  const Update update = model.update(half, adamw(4));
  plain.step(update.step);
  ASSERT_TRUE(paged.stream().step({&update, 1}).ok());
  Halves halves(plain.size());
  paged.pages().read(paged.layout().tensors()[half], halves.data());
  EXPECT_TRUE(halves == plain.halves);
  EXPECT_TRUE(paged.state("p1/master", plain.size()) == plain.values);
}

TEST(OptimizerStream, ChunksSteppedOneByOneInAnyOrderAreAStep) {
  Model model(4);
  Paged paged(model, 4096, 2);
  std::vector<PageId> pages;
  for (PageId page = 0; page < paged.layout().pages(); ++page) pages.push_back(page);
  for (int t = 1; t <= 3; ++t) {
    std::vector<Update> updates;
    for (std::uint32_t i = 0; i < model.size(); ++i) {
      updates.push_back(model.update(i, adamw(t)));
      model[i].step(updates.back().step);
    }
    std::shuffle(pages.begin(), pages.end(), std::mt19937(static_cast<std::uint32_t>(t)));
    for (const PageId page : pages) {
      for (const std::uint32_t part : {1u, 0u}) {
        auto chunk = paged.stream().begin_chunk(page, part, updates);
        ASSERT_TRUE(chunk.ok()) << chunk.status().message();
        if (*chunk == nullptr) continue;
        paged.stream().compute(**chunk);
        paged.stream().end(**chunk);
      }
    }
  }
  paged.expect_is(model);
}

TEST(OptimizerStream, UsesComeInTheSameOrderInEveryStep) {
  Model model(5);
  Paged paged(model, 4096, 1);
  std::vector<Update> updates;
  for (std::uint32_t i = 0; i < model.size(); ++i) updates.push_back(model.update(i, adamw(1)));
  ASSERT_TRUE(paged.stream().step(updates).ok());
  const std::vector<OperatorKey> first = paged.pages().keys();
  std::reverse(updates.begin(), updates.end());
  ASSERT_TRUE(paged.stream().step(updates).ok());
  EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
  EXPECT_TRUE(std::equal(first.begin(), first.end(),
                         paged.pages().keys().begin() + static_cast<std::ptrdiff_t>(first.size())));
}

TEST(OptimizerStream, APageThatCannotBeHadEndsTheStepWithNothingHeld) {
  Model model(6);
  Paged paged(model, 4096, 2);
  std::vector<Update> updates;
  for (std::uint32_t i = 0; i < model.size(); ++i) updates.push_back(model.update(i, adamw(1)));
  paged.pages().fail_at(1);
  const Status stepped = paged.stream().step(updates);
  EXPECT_EQ(stepped.code(), Code::kResource);
  EXPECT_EQ(stepped.message().find("the optimizer's step ended before page 1 ("), 0u)
      << stepped.message();
  EXPECT_EQ(paged.pages().open(), 0u);
  EXPECT_EQ(paged.pages().keys().size(), 1u);
}

TEST(OptimizerStream, UpdatesThatCannotBeAreRefusedByName) {
  Model model(7);
  const StateKind average[] = {StateKind::kExpAvg};
  Paged paged(model, 4096, 1, average);
  const auto refusal = [&](std::vector<Update> updates) {
    const Status status = paged.stream().step(updates);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(paged.pages().keys().empty());
    return status.message();
  };
  const StepConstants lion = kernels::lion_step({});
  EXPECT_EQ(refusal({model.update(3, adamw(1))}),
            "parameter 'p3' has no state 'exp_avg_sq', which its step needs");
  EXPECT_EQ(refusal({model.update(0, lion), model.update(3, lion), model.update(0, lion)}),
            "parameter 'p0' has two updates in one step");
  EXPECT_EQ(refusal({{3, nullptr, false, lion}}),
            "parameter 'p3' is to be stepped without a gradient");
  EXPECT_NE(refusal({{1000, nullptr, false, lion}}).find("tensor 1000"), std::string::npos);
  const auto state = static_cast<std::uint32_t>(paged.layout().find("p3/exp_avg") -
                                                paged.layout().tensors().data());
  EXPECT_EQ(refusal({{state, model[0].gradient.data(), false, lion}}),
            "parameter 'p3/exp_avg' has no optimizer state");
}

}  // namespace
}  // namespace taco::zerocache
