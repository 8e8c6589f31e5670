#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/variant.h"

namespace taco::kernels {
namespace {

TEST(Dispatch, TheBestVariantOfTheHostIsUsed) {
  EXPECT_STREQ(isa_name(), host_variants().back()->name);
  EXPECT_TRUE(isa_status().ok());
}

// The choice is made once a process, so each of these asks in a fresh one.
std::string isa_under(const std::string& value) {
  setenv("TACO_ISA", value.c_str(), 1);
  const std::string answer = std::string(isa_name()) + " " + isa_status().message();
  return answer;
}

TEST(DispatchDeathTest, TheVariableForcesALesserVariant) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const Variant* variant : host_variants()) {
    const std::string name = variant->name;
    EXPECT_EXIT(
        {
          const bool same = isa_under(name) == name + " ";
          std::exit(same ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "")
        << name;
  }
}

TEST(DispatchDeathTest, AVariantTheHostLacksIsAnErrorThatNamesThoseItHas) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
#if defined(__x86_64__)
  const std::string absent = "neon";
#else
  const std::string absent = "avx512";
#endif
  EXPECT_EXIT(
      {
        std::fputs(isa_under(absent).c_str(), stderr);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0),
      "TACO_ISA is \"" + absent + "\", but this host has only portable");
}

}  // namespace
}  // namespace taco::kernels
