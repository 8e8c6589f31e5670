// Every algorithm, on even and uneven hosts, for every root, element size and awkward count, proved
// by the interpreter.
#include "support/every_algorithm.h"

namespace taco::pg {
namespace {

using namespace testing;

// Those between, up to 64, are in algorithms_sizes_test.cc.
TEST_P(EveryAlgorithm, keeps_its_promises_for_every_small_world_and_some_large_ones) {
  set_codec(128);
  for (int world = 1; world <= 18 && !HasFatalFailure(); ++world) prove_world(world);
  for (int world : {23, 24, 32, 33, 48, 64}) {
    if (!HasFatalFailure()) prove_world(world);
  }
  EXPECT_GT(proved_, 8);
}

TEST_P(EveryAlgorithm, keeps_its_promises_for_awkward_counts_and_every_element_size) {
  set_codec(64);
  for (int world : {2, 3, 4, 5, 7, 8, 12}) {
    for (const Topology& topology : layouts(world)) {
      for (std::uint32_t element : {1u, 2u, 4u, 8u, 16u}) {
        for (std::uint64_t elements : {0, 1, 2, world - 1, world, world + 1, 100, 517}) {
          const auto problems = problems_of(algorithm().kind, world, element,
                                            random_traits(world, elements), random_);
          prove(topology, problems, 256);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(proved_, 100);
}

TEST_P(EveryAlgorithm, keeps_its_promises_for_every_root) {
  set_codec(256);
  for (int world : {2, 3, 6, 9, 16}) {
    for (const Topology& topology : layouts(world)) {
      for (int root = 0; root < world; ++root) {
        ProblemTraits traits = random_traits(world, 500);
        traits.root = root;
        prove(topology, problems_of(algorithm().kind, world, 4, traits, random_), 256);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Small worlds under many orders of events: where a missing dependency would show.
TEST_P(EveryAlgorithm, keeps_its_promises_under_many_orders_of_events) {
  set_codec(64);
  for (int round = 0; round < 300; ++round) {
    const int world = 2 + static_cast<int>(random_() % 7);
    const Topology topology =
        scattered_topology(world, 1 + static_cast<int>(random_() % world), random_);
    const auto problems = problems_of(algorithm().kind, world, random_element(),
                                      random_traits(world, random_() % 200), random_);
    prove(topology, problems, 64);
    if (HasFatalFailure()) return;
  }
}

// The ring for scaled input comes round: what it held has been sent by then.
TEST_P(EveryAlgorithm, keeps_its_promises_when_more_input_is_scaled_than_the_ring_holds) {
  const Kind kind = algorithm().kind;
  if (kind != Kind::kAllReduce && kind != Kind::kReduce && kind != Kind::kReduceScatter) return;
  if (needs_memory()) return;  // its elements are shorter, and never scaled
  for (const Topology& topology : {Topology::one_host(3), Topology::uniform(2, 2, 1)}) {
    const std::uint64_t world = topology.world();
    ProblemTraits traits;
    traits.elements = (kind == Kind::kReduceScatter ? (18 << 20) / world : 9 << 20) / 8;
    traits.premultiply = true;
    prove(topology, problems_of(kind, topology.world(), 8, traits, random_), 1 << 20);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryAlgorithm,
                         ::testing::ValuesIn(algorithms_and_coded().begin(),
                                             algorithms_and_coded().end()),
                         test_name);

}  // namespace
}  // namespace taco::pg
