#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "cuda/device_check.h"
#include "kernels/cuda/blocks_of_gradient.h"
#include "kernels/cuda/taco_cuda.h"

namespace taco::kernels::cuda::check {
namespace {

using testing::BlocksOfGradient;
using testing::Outcome;
using Random = std::mt19937_64;
using Fill = std::function<float(Random&, std::size_t i)>;

BlocksOfGradient made(std::size_t count, std::uint32_t block, std::uint32_t k, const Fill& fill,
                      bool with_momentum = false) {
  Random random(count + k);
  BlocksOfGradient of{.count = count, .block = block, .k = k};
  const std::uint64_t last = count - (of.blocks() - 1) * block;
  of.last_k = std::max(1u, static_cast<std::uint32_t>(k * last / block));
  for (std::size_t i = 0; i < count; ++i) {
    of.residual.push_back(fill(random, i));
    of.gradient.push_back(fill(random, i));
    if (with_momentum) of.momentum.push_back(fill(random, i));
  }
  return of;
}

Outcome by_gpu(const BlocksOfGradient& of, bool in_place, std::size_t shift) {
  DeviceArray<float> residual(of.residual, shift), gradient(of.gradient, 2 * shift);
  DeviceArray<float> momentum(of.momentum, shift);
  DeviceArray<float> new_residual(of.count, 3 * shift), new_momentum(of.momentum.size());
  DeviceArray<float> values(of.taken()), taken_momentum(of.taken());
  DeviceArray<std::uint32_t> indices(of.taken()), finite(of.blocks());
  SelectArguments arguments{.count = of.count, .block = of.block, .k = of.k, .last_k = of.last_k};
  arguments.residual = residual.data();
  arguments.gradient = of.gradient.empty() ? nullptr : gradient.data();
  arguments.new_residual = in_place ? residual.data() : new_residual.data();
  if (!of.momentum.empty()) {
    arguments.momentum = momentum.data();
    arguments.new_momentum = in_place ? momentum.data() : new_momentum.data();
    arguments.taken_momentum = taken_momentum.data();
  }
  arguments.factor = of.factor;
  arguments.values = values.data();
  arguments.indices = indices.data();
  arguments.finite = finite.data();
  DeviceArray<unsigned char> workspace(taco_cuda_select_workspace_bytes(&arguments));
  must(taco_cuda_select_largest(nullptr, &arguments, workspace.data()), "select");
  wait();
  if (!workspace.guards_intact() || !values.guards_intact() || !indices.guards_intact() ||
      !new_residual.guards_intact() || !residual.guards_intact()) {
    std::printf("FAILED: select wrote outside of its arrays\n");
    std::exit(1);
  }
  Outcome out{in_place ? residual.get() : new_residual.get(),
              in_place ? momentum.get() : new_momentum.get(),
              values.get(),
              taken_momentum.get(),
              indices.get(),
              finite.get()};
  if (of.momentum.empty()) out.taken_momentum.clear();
  return out;
}

void compare(Cases& cases, const char* name, const BlocksOfGradient& of) {
  const Outcome expected = of.by_host();
  for (const bool in_place : {false, true}) {
    for (const std::size_t shift : {0, 1}) {
      cases.expect(same(of, by_gpu(of, in_place, shift), expected, in_place),
                   std::string(name) + ", " + std::to_string(of.k) + " of " +
                       std::to_string(of.block) + ", shift " + std::to_string(shift) +
                       (in_place ? ", in place" : ""));
    }
  }
}

float normal(Random& random, std::size_t) { return std::normal_distribution<float>()(random); }

void compare_awkward(Cases& cases, std::size_t count, std::uint32_t block) {
  const std::pair<const char*, Fill> fills[] = {
      {"all equal", [](Random&, std::size_t) { return 0.5f; }},
      {"mostly zeros", [](Random&, std::size_t i) { return i % 997 == 3 ? 1.0f : 0.0f; }},
      {"zeros of both signs", [](Random& r, std::size_t) { return r() % 2 == 0 ? 0.0f : -0.0f; }},
      {"two magnitudes", [](Random& r, std::size_t) { return r() % 2 == 0 ? 1.0f : -1.0f; }},
      {"ascending", [](Random&, std::size_t i) { return 1e-3f * static_cast<float>(i); }},
      {"all in front", [](Random&, std::size_t i) { return i < 400 && i % 3 == 1 ? 7.0f : 1e-3f; }},
      {"denormals", [](Random& r, std::size_t) { return 1e-45f * static_cast<float>(r() % 50); }},
      {"largest finite", [](Random& r, std::size_t) { return r() % 9 == 0 ? 1.5e38f : -1e38f; }},
  };
  for (const auto& [name, fill] : fills) {
    compare(cases, name, made(count, block, block / 100, fill));
    compare(cases, name, made(count, block, block / 20, fill, true));
  }
}

}  // namespace

bool check_select(bool small) {
  Cases cases("select the largest");
  for (const std::uint32_t block : {1, 2, 31, 100, 4096, 4099, 12000}) {
    for (const std::uint32_t k : {1u, block / 100, block / 2, block}) {
      if (k > 0) compare(cases, "random", made(3 * block - block / 3, block, k, normal));
    }
  }
  compare_awkward(cases, 20000, 12000);
  BlocksOfGradient flush = made(9000, 4500, 45, normal);
  flush.gradient.clear();
  compare(cases, "no gradient", flush);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    BlocksOfGradient of = made(15000, 5000, 50, normal, true);
    of.gradient[7000] = bad;
    compare(cases, "not finite", of);
  }
  if (!small) {
    compare_awkward(cases, 300000, 1 << 17);
    compare(cases, "random", made(1 << 20, 1 << 20, 10486, normal));
    compare(cases, "random", made((1 << 21) + 77, 1 << 17, 1311, normal));
    compare(cases, "random", made((1 << 20) + 77, 1 << 17, 1311, normal, true));
  }
  return cases.end();
}

}  // namespace taco::kernels::cuda::check
