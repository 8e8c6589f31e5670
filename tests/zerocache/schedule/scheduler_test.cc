// The scheduler under a virtual clock: what it keeps, how often pages are there in time, and what
// it never does.
#include "zerocache/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "support/zerocache_programs.h"
#include "zerocache/schedule/simulator.h"

namespace taco::zerocache {
namespace {

std::uint64_t copies(const SimulatedRun& run, Way way) { return run.copies[static_cast<int>(way)]; }

// A model whose parameters and state begin where there is room: on the host, then on disk.
void place_model(Simulator& simulator, const Model& model, std::uint32_t host_frames) {
  std::uint32_t placed = 0;
  const auto place = [&](PageId page) {
    simulator.place(page, ++placed <= host_frames ? Tier::kHost : Tier::kDisk);
  };
  for (int layer = 0; layer < model.layers; ++layer) {
    for (int i = 0; i < model.layer_pages; ++i) place(model.parameter(layer, i));
  }
  for (int layer = 0; layer < model.layers; ++layer) {
    for (int i = 0; i < 2 * model.layer_pages; ++i) place(model.state(layer, i));
  }
}

TEST(Scheduler, WhereAllFitsNothingMovesAfterTheFirstStep) {
  const Model model;
  Simulator simulator({200, 200, 0}, quick_ways(), model.pages());
  place_model(simulator, model, 150);
  simulator.runs(2, "train", model.training_step());
  const SimulatedRun run = simulator.runs(3, "train", model.training_step());
  EXPECT_EQ(first_fault(simulator), "");
  for (const std::uint64_t moved : run.copies) EXPECT_EQ(moved, 0u);
  EXPECT_EQ(run.stalled(), 0);
}

// Pages that do not fit come in time wherever the ways are fast enough for the program at all.
TEST(Scheduler, OnAStaticProgramPagesAreThereInTime) {
  const Model model{.layers = 48, .layer_pages = 4};
  for (const std::uint32_t device : {100u, 200u, 400u}) {
    Simulator simulator({device, 900, 0}, quick_ways(), model.pages());
    place_model(simulator, model, 600);
    simulator.runs(3, "train", model.training_step());
    const SimulatedRun run = simulator.runs(5, "train", model.training_step());
    EXPECT_EQ(first_fault(simulator), "");
    EXPECT_GE(run.hit_rate(), 0.99) << device << " frames, " << run.hits + run.misses << " fetched";
    EXPECT_LE(run.stalled(), run.compute / 100) << device << " frames";
    EXPECT_GT(run.hits, 100u) << device << " frames";
    EXPECT_LE(simulator.max_used(Tier::kDevice), device);
  }
}

TEST(Scheduler, FromDiskTooPagesAreThereInTime) {
  const Model model{.layers = 48, .layer_pages = 4, .forward = 10 * kMillisecond};
  Simulator simulator({120, 200, 900}, quick_ways(), model.pages());
  place_model(simulator, model, 100);
  simulator.runs(3, "train", model.training_step());
  const SimulatedRun run = simulator.runs(5, "train", model.training_step());
  EXPECT_EQ(first_fault(simulator), "");
  EXPECT_GE(run.hit_rate(), 0.99) << run.hits + run.misses << " fetched";
  EXPECT_LE(run.stalled(), run.compute / 100);
  EXPECT_GT(copies(run, Way::kRead), 100u);
}

// Figures are never as steady as those that plans are made with.
TEST(Scheduler, CopiesThatTakeUpToHalfAsLongAgainAreStillThereInTime) {
  const Model model{.layers = 48, .layer_pages = 4, .forward = 10 * kMillisecond};
  Simulator simulator({120, 200, 900}, quick_ways(), model.pages());
  place_model(simulator, model, 100);
  simulator.set_noise(1.5, 7);
  simulator.runs(3, "train", model.training_step());
  const SimulatedRun run = simulator.runs(5, "train", model.training_step());
  EXPECT_EQ(first_fault(simulator), "");
  EXPECT_GE(run.hit_rate(), 0.99);
}

// The ways are too slow: then a step takes little longer than the slowest of them and the
// computation together, and not as long as both ways.
TEST(Scheduler, WhereAWayIsTheLimitItIsHardlyIdle) {
  const Model model{.layers = 48, .layer_pages = 4, .forward = 100 * kMicrosecond};
  const Costs costs = quick_ways();
  Simulator simulator({100, 900, 0}, costs, model.pages());
  place_model(simulator, model, 600);
  simulator.runs(3, "train", model.training_step());
  const SimulatedRun run = simulator.runs(5, "train", model.training_step());
  EXPECT_EQ(first_fault(simulator), "");
  const auto busiest =
      static_cast<Duration>(std::max(copies(run, Way::kUpload), copies(run, Way::kDownload)));
  const double seconds = static_cast<double>(costs.page_bytes) / 25e9;
  const auto limit = static_cast<Duration>(seconds * 1e9) * busiest;
  EXPECT_LE(run.time, (limit + run.compute) * 11 / 10);
}

TEST(Scheduler, ReadingAloneWritesNothingToDisk) {
  const Model model{.layers = 40, .layer_pages = 4};
  Simulator simulator({20, 40, 700}, quick_ways(), model.pages());
  place_model(simulator, model, 0);
  const SimulatedRun run = simulator.runs(6, "eval", model.evaluation());
  EXPECT_EQ(first_fault(simulator), "");
  EXPECT_EQ(copies(run, Way::kWrite), 0u);
  EXPECT_GT(copies(run, Way::kRead), 400u);
}

// A program that computes gradients and never steps has one run that does not end. What is learned
// of it is bounded, and it is followed from then on.
TEST(Scheduler, ARunThatNeverEndsIsTakenForSeveral) {
  const Model model{.layers = 10, .layer_pages = 4};
  Simulator simulator({20, 200, 0}, quick_ways(), model.pages());
  place_model(simulator, model, 200);
  const std::vector<Use> pass = model.evaluation();
  std::vector<Use> endless;
  for (std::size_t entries = 0; entries < 800'000;) {
    for (const Use& use : pass) entries += 1 + use.accesses.size();
    endless.insert(endless.end(), pass.begin(), pass.end());
  }
  const SimulatedRun run = simulator.runs(1, "train", endless);
  EXPECT_EQ(first_fault(simulator), "");
  EXPECT_GE(run.hit_rate(), 0.4) << "nothing was fetched ahead";
}

// A page that a step writes is written to disk once at most, whatever the forward pass does:
// parameters, state, and gradients that do not fit.
TEST(Scheduler, AStepWritesNoPageTwice) {
  const Model model{.layers = 40, .layer_pages = 4};
  Simulator simulator({40, 60, 700}, quick_ways(), model.pages());
  place_model(simulator, model, 0);
  simulator.runs(3, "train", model.training_step());
  const SimulatedRun run = simulator.runs(4, "train", model.training_step());
  EXPECT_EQ(first_fault(simulator), "");
  EXPECT_LE(copies(run, Way::kWrite), 4 * model.pages());
}

TEST(Scheduler, AnEvaluationBetweenStepsIsFollowedAndForgetsNothing) {
  const Model model{.layers = 48, .layer_pages = 4, .forward = 10 * kMillisecond};
  Simulator simulator({120, 300, 900}, quick_ways(), model.pages());
  place_model(simulator, model, 100);
  simulator.runs(3, "train", model.training_step());
  simulator.run("eval", model.evaluation());
  SimulatedRun all;
  for (int i = 0; i < 4; ++i) {
    all += simulator.runs(2, "train", model.training_step());
    all += simulator.run("eval", model.evaluation());
  }
  EXPECT_EQ(first_fault(simulator), "");
  EXPECT_GE(all.hit_rate(), 0.97) << all.hits + all.misses;
}

// An optimizer that runs on the host, with state that the device never sees.
TEST(Scheduler, AStepOnTheHostFindsItsPagesThere) {
  const Model model{
      .layers = 24, .layer_pages = 4, .forward = 10 * kMillisecond, .step_tier = Tier::kHost};
  Simulator simulator({60, 200, 700}, quick_ways(), model.pages());
  place_model(simulator, model, 100);
  simulator.runs(3, "train", model.training_step());
  const SimulatedRun run = simulator.runs(4, "train", model.training_step());
  EXPECT_EQ(first_fault(simulator), "");
  EXPECT_GE(run.hit_rate(), 0.97) << run.hits << " and " << run.misses;
}

// Device memory that is free takes what the host has no room for; the disk, which has room too,
// gets and gives nothing.
TEST(Scheduler, WhatBothMemoriesHoldTogetherStaysOffTheDisk) {
  Model model{.layers = 24, .layer_pages = 4, .step_tier = Tier::kHost};
  model.step_anywhere = true;
  std::vector<Use> step = model.training_step();
  std::uint32_t live = 0;
  for (Use& use : step) {  // without gradients as pages
    std::erase_if(use.accesses, [&](const Access& access) {
      return access.page >= model.gradient(0, 0) && access.page < model.state(0, 0);
    });
  }
  for (PageId page = 0; page < model.pages(); ++page) {
    live += page < model.gradient(0, 0) || page >= model.state(0, 0);
  }
  for (const std::uint32_t host : {12u, 100u}) {
    Simulator simulator({live + 2, host, live}, quick_ways(), model.pages());
    place_model(simulator, model, host - 2);
    simulator.runs(3, "train", step);
    const SimulatedRun run = simulator.runs(4, "train", step);
    EXPECT_EQ(first_fault(simulator), "") << host << " frames of the host";
    EXPECT_EQ(copies(run, Way::kRead), 0u) << host << " frames of the host";
    EXPECT_EQ(copies(run, Way::kWrite), 0u) << host << " frames of the host";
  }
}

// A mixture of experts: after each layer one of eight, some far more often than others, and with
// its own backward pass.
std::vector<Use> step_with_experts(std::mt19937_64& random, int layers) {
  std::vector<Use> uses;
  std::vector<int> chosen;
  for (int layer = 0; layer < layers; ++layer) {
    uses.push_back({key_of(Part::kForward, layer), 2 * kMillisecond, {}});
    for (PageId i = 0; i < 4; ++i) {
      uses.back().accesses.push_back({static_cast<PageId>(layer * 12) + i});
    }
    const int expert = random() % 10 < 7 ? layer % 8 : static_cast<int>(random() % 8);
    chosen.push_back(expert);
    uses.push_back({key_of(Part::kForward, layer, 1 + expert), 2 * kMillisecond, {}});
    uses.back().accesses.push_back({static_cast<PageId>(layer * 12 + 4 + expert)});
  }
  for (int layer = layers; layer-- > 0;) {
    const int expert = chosen[static_cast<std::size_t>(layer)];
    uses.push_back({key_of(Part::kBackward, layer, 1 + expert), 4 * kMillisecond, {}});
    uses.back().accesses.push_back(
        {static_cast<PageId>(layer * 12 + 4 + expert), Tier::kDevice, true, true});
    uses.push_back({key_of(Part::kBackward, layer), 4 * kMillisecond, {}});
    for (PageId i = 0; i < 4; ++i) {
      uses.back().accesses.push_back(
          {static_cast<PageId>(layer * 12) + i, Tier::kDevice, true, true});
    }
  }
  return uses;
}

TEST(Scheduler, ProgramsThatBranchFindNineOfTenPagesInTime) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    std::mt19937_64 random(seed);
    constexpr int kLayers = 32;
    Simulator simulator({60, 400, 0}, quick_ways(), kLayers * 12);
    for (PageId page = 0; page < kLayers * 12; ++page) simulator.place(page, Tier::kHost);
    for (int i = 0; i < 10; ++i) simulator.run("train", step_with_experts(random, kLayers));
    SimulatedRun all;
    for (int i = 0; i < 20; ++i) all += simulator.run("train", step_with_experts(random, kLayers));
    EXPECT_EQ(first_fault(simulator), "") << "seed " << seed;
    EXPECT_GE(all.hit_rate(), 0.90) << "seed " << seed << ": " << all.hits << ", " << all.misses;
  }
}

// Layers are left out at random, a quarter of them in each step, other ones in the next (LayerDrop:
// Fan, Grave and Joulin, 2019).
std::vector<Use> step_with_layers_left_out(std::mt19937_64& random, const Model& model) {
  std::vector<int> layers;
  for (int layer = 0; layer < model.layers; ++layer) {
    if (random() % 4 != 0) layers.push_back(layer);
  }
  std::vector<Use> uses;
  for (const int layer : layers) uses.push_back(model.forward_of(layer));
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    uses.push_back(model.backward_of(*layer));
  }
  for (const int layer : layers) {
    for (Use& use : model.step_of(layer)) {
      use.compute = kMillisecond;
      uses.push_back(std::move(use));
    }
  }
  return uses;
}

TEST(Scheduler, WhereLayersAreLeftOutNineOfTenPagesAreThereInTime) {
  const Model model{.layers = 12,
                    .layer_pages = 7,
                    .forward = 80 * kMillisecond,
                    .step_tier = Tier::kHost,
                    .step_anywhere = true};
  const auto pages = static_cast<std::uint32_t>(model.pages());
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    std::mt19937_64 random(seed);
    Simulator simulator({pages / 4, pages / 2, pages}, quick_ways(), model.pages());
    place_model(simulator, model, pages / 4);
    const auto run = [&] {
      return simulator.run("train", step_with_layers_left_out(random, model));
    };
    for (int i = 0; i < 10; ++i) run();
    SimulatedRun all;
    for (int i = 0; i < 20; ++i) all += run();
    EXPECT_EQ(first_fault(simulator), "") << "seed " << seed;
    EXPECT_GE(all.hit_rate(), 0.90) << "seed " << seed << ": " << all.hits << ", " << all.misses;
  }
}

TEST(Scheduler, AnEarlyExitCostsLittle) {
  const Model model{.layers = 64, .layer_pages = 4};
  std::mt19937_64 random(3);
  Simulator simulator({60, 400, 0}, quick_ways(), 256);
  for (int layer = 0; layer < model.layers; ++layer) {
    for (int i = 0; i < 4; ++i) simulator.place(model.parameter(layer, i), Tier::kHost);
  }
  SimulatedRun all;
  for (int i = 0; i < 30; ++i) {
    std::vector<Use> uses = model.evaluation();
    if (random() % 3 == 0) {
      const auto last = static_cast<std::ptrdiff_t>(8 + random() % 50);
      uses.erase(uses.begin() + last, uses.end() - 4);
    }
    const SimulatedRun run = simulator.run("serve", uses);
    if (i >= 3) all += run;
  }
  EXPECT_EQ(first_fault(simulator), "");
  EXPECT_GE(all.hit_rate(), 0.90) << all.hits << ", " << all.misses;
}

// Device memory of exactly the largest operator, two frames of the host, one page of room in all.
TEST(Scheduler, TheLeastCapacitiesAreEnough) {
  const Model model{.layers = 6, .layer_pages = 2};
  const std::size_t pages = model.pages();
  for (const auto& capacities : {Capacities{4, 2, static_cast<std::uint32_t>(pages - 4)},
                                 Capacities{4, static_cast<std::uint32_t>(pages - 2), 0},
                                 Capacities{5, 3, static_cast<std::uint32_t>(pages - 6)}}) {
    ASSERT_TRUE(check_capacities(capacities, kPageBytes, pages, 4, 0).ok());
    Simulator simulator(capacities, quick_ways(), pages);
    std::uint32_t host = capacities.host - 2, placed = 0;
    for (int layer = 0; layer < model.layers; ++layer) {
      for (int i = 0; i < 2; ++i) {
        simulator.place(model.parameter(layer, i), placed++ < host ? Tier::kHost : Tier::kDisk);
      }
      for (int i = 0; i < 4; ++i) {
        const Tier tier = placed < host                     ? Tier::kHost
                          : placed < host + capacities.disk ? Tier::kDisk
                                                            : Tier::kDevice;
        simulator.place(model.state(layer, i), tier);
        ++placed;
      }
    }
    simulator.runs(5, "train", model.training_step());
    EXPECT_EQ(first_fault(simulator), "")
        << capacities.device << ", " << capacities.host << ", " << capacities.disk;
  }
}

// A page that the device cannot hold is stepped where it lies instead of being fetched for that and
// written back.
TEST(Scheduler, WhatMayBeSteppedAnywhereIsNotFetchedForIt) {
  const auto moved = [](bool anywhere) {
    Model model{.layers = 48, .layer_pages = 4, .step_tier = Tier::kHost};
    model.step_anywhere = anywhere;
    // A program without gradients as pages, as the store's is.
    std::vector<Use> step = model.training_step();
    const auto is_gradient = [&](const Access& access) {
      return access.page >= model.gradient(0, 0) && access.page < model.state(0, 0);
    };
    for (Use& use : step) {
      std::erase_if(use.accesses, is_gradient);
      if (!anywhere && use.key >= key_of(Part::kStep, 0)) use.accesses[0].tier = Tier::kDevice;
    }
    Simulator simulator({140, 900, 0}, quick_ways(), model.pages());
    place_model(simulator, model, 600);
    simulator.runs(3, "train", step);
    const SimulatedRun run = simulator.runs(4, "train", step);
    EXPECT_EQ(first_fault(simulator), "");
    return std::pair(copies(run, Way::kUpload) / 4, copies(run, Way::kDownload) / 4);
  };
  // 192 pages of parameters, of which 52 do not fit: they come for the forward pass and for the
  // backward pass, and in the place of as many that were stepped on the device.
  const auto [uploads, downloads] = moved(true);
  EXPECT_LE(uploads, 2 * 60u);
  EXPECT_LE(downloads, 60u);
  const auto [uploads_for_it, downloads_for_it] = moved(false);
  EXPECT_GE(uploads_for_it + downloads_for_it, (uploads + downloads) * 3 / 2);
}

TEST(Scheduler, CapacitiesThatAreTooSmallAreNamedWithWhatIsNeeded) {
  const auto text = [](const Capacities& capacities, std::size_t pages, std::size_t device,
                       std::size_t host) {
    return check_capacities(capacities, kPageBytes, pages, device, host).message();
  };
  EXPECT_EQ(
      text({3, 10, 0}, 10, 4, 0),
      "device memory holds 3 pages (12 MiB), but one operator needs 4 pages (16 MiB) there at "
      "once: give it 4 pages (16 MiB) at least");
  EXPECT_NE(text({4, 1, 100}, 50, 4, 0).find("host memory holds 1 page (4 MiB)"),
            std::string::npos);
  EXPECT_NE(text({4, 4, 100}, 50, 4, 3).find("give it 5 pages (20 MiB)"), std::string::npos);
  EXPECT_NE(text({4, 4, 4}, 11, 4, 0).find("give it 13 pages (52 MiB)"), std::string::npos);
  // Never rounded down: who gives what the text says has enough.
  EXPECT_EQ(check_capacities({1, 10, 0}, 64 << 10, 10, 5, 0).message(),
            "device memory holds 1 page (64 KiB), but one operator needs 5 pages (320 KiB) there "
            "at once: give it 5 pages (320 KiB) at least");
  EXPECT_EQ(text({12, 0, 0}, 11, 4, 0), "");
  EXPECT_EQ(text({0, 12, 0}, 12, 0, 4), "");
  EXPECT_EQ(text({4, 4, 4}, 10, 4, 0), "");
}

TEST(Scheduler, AnOperatorThatNeedsTooMuchIsRefusedAndTheNextOneIsNot) {
  Scheduler scheduler({2, 4, 0}, {}, 4);
  for (PageId page = 0; page < 3; ++page) scheduler.place(page, Tier::kHost);
  scheduler.begin_run("train");
  const Access three[] = {{0}, {1}, {2}};
  EXPECT_EQ(scheduler.begin(0, 1, three).code(), Code::kInvalidArgument);
  EXPECT_TRUE(scheduler.begin(0, 1, std::span(three).first(2)).ok());
}

TEST(Scheduler, ACopyThatFailedIsTriedAgainOnlyWhenAnOperatorAsks) {
  Scheduler scheduler({2, 4, 4}, {}, 4);
  scheduler.place(0, Tier::kDisk);
  const Access access{0};
  std::vector<Action> actions;
  scheduler.begin_run("train");
  for (int attempt = 0; attempt < 3; ++attempt) {
    ASSERT_TRUE(scheduler.begin(0, 1, {&access, 1}).ok());
    scheduler.decide(0, actions);
    ASSERT_EQ(actions.size(), 1u) << "attempt " << attempt;
    EXPECT_EQ(actions[0].kind, Action::Kind::kCopy);
    scheduler.done(actions[0].copy, false);
    actions.clear();
    scheduler.decide(0, actions);
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions[0].kind, Action::Kind::kDrop) << "the frame is free again";
    EXPECT_FALSE(scheduler.ready());
    scheduler.end(0);
    actions.clear();
  }
  EXPECT_TRUE(scheduler.pages().has(0, Tier::kDisk));
}

// Host memory is full of what is needed there and of what is to go up, the device of what would
// have to come down.
TEST(Scheduler, WhatIsToGoUpStepsAsideForWhatHasToComeDown) {
  for (const std::uint32_t slots : {3u, 6u}) {
    Simulator simulator({2, 4, slots}, quick_ways(), 6);
    for (const PageId page : {0, 1, 2, 3}) simulator.place(page, Tier::kHost);
    for (const PageId page : {4, 5}) simulator.place(page, Tier::kDevice);
    const Use use{1, kMillisecond, {{0}, {1}, {2, Tier::kHost}, {3, Tier::kHost}}};
    simulator.run("train", {use});
    EXPECT_EQ(first_fault(simulator), "") << slots << " slots";
  }
}

// The same where the operator gets another page at once, to be written whole: no copy follows from
// that, after which there would be another look.
TEST(Scheduler, WhatIsToGoUpStepsAsideThoughABlankPageHasBeenTaken) {
  for (const std::uint32_t slots : {3u, 6u}) {
    Simulator simulator({3, 4, slots}, quick_ways(), 7);
    for (const PageId page : {0, 1, 2, 3}) simulator.place(page, Tier::kHost);
    for (const PageId page : {4, 5}) simulator.place(page, Tier::kDevice);
    const Access blank{6, Tier::kDevice, false, true};
    const Use use{1, kMillisecond, {{0}, {1}, blank, {2, Tier::kHost}, {3, Tier::kHost}}};
    simulator.run("train", {use});
    EXPECT_EQ(first_fault(simulator), "") << slots << " slots";
  }
}

// No assertion on time: the figure is printed for whoever wants to know.
TEST(Scheduler, ADecisionOfAHundredThousandPagesIsCheap) {
  const Model model{.layers = 500, .layer_pages = 50};
  ASSERT_EQ(model.pages(), 100000u);
  Simulator simulator({10000, 40000, 80000}, quick_ways(), model.pages());
  place_model(simulator, model, 30000);
  simulator.run("train", model.training_step());
  const auto start = std::chrono::steady_clock::now();
  const SimulatedRun run = simulator.run("train", model.training_step());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(first_fault(simulator), "");
  std::uint64_t accesses = 0, moved = 0;
  for (const Use& use : model.training_step()) accesses += use.accesses.size();
  for (const std::uint64_t copied : run.copies) moved += copied;
  std::printf("%.2f us an access, simulation included (%llu accesses, %llu copies)\n",
              took.count() * 1e6 / static_cast<double>(accesses),
              static_cast<unsigned long long>(accesses), static_cast<unsigned long long>(moved));
}

}  // namespace
}  // namespace taco::zerocache
