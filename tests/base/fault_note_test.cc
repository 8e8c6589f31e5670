#include "base/fault_note.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace taco {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 16;

// Addresses without memory.
struct Nothing {
  std::byte* begin = static_cast<std::byte*>(
      mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ~Nothing() { munmap(begin, kBytes); }
};

std::size_t copy_text(const std::string& from, char* text, std::size_t size) {
  const std::size_t length = std::min(from.size(), size);
  memcpy(text, from.data(), length);
  return length;
}

std::size_t name_of_byte(const void* owner, std::size_t offset, char* text, std::size_t size) {
  const auto& name = *static_cast<const std::string*>(owner);
  return copy_text("byte " + std::to_string(offset) + " of " + name, text, size);
}

// No death: a test that expects one fails.
std::size_t end_well(const void*, std::size_t, char*, std::size_t) { _exit(0); }

void touch(const std::byte* address) { *const_cast<volatile std::byte*>(address) = std::byte{1}; }

TEST(FaultNoteDeath, a_touch_of_noted_addresses_ends_the_process_with_a_line) {
  const Nothing nothing;
  const std::string name = "the weights";
  const FaultNote note(nothing.begin, kBytes, &name, &name_of_byte);
  EXPECT_DEATH(touch(nothing.begin), "byte 0 of the weights\n");
  EXPECT_DEATH(touch(nothing.begin + kBytes - 1), "byte 65535 of the weights\n");
}

TEST(FaultNoteDeath, other_addresses_fault_as_ever) {
  const Nothing noted, other;
  const FaultNote note(noted.begin, kBytes, nullptr, &end_well);
  EXPECT_DEATH(touch(other.begin), "");
}

TEST(FaultNoteDeath, a_note_that_is_gone_says_nothing_and_leaves_its_place) {
  const Nothing nothing;
  for (int i = 0; i < 1000; ++i) const FaultNote gone(nothing.begin, kBytes, nullptr, &end_well);
  EXPECT_DEATH(touch(nothing.begin), "");
  const std::string name = "what came later";
  const FaultNote note(nothing.begin, kBytes, &name, &name_of_byte);
  EXPECT_DEATH(touch(nothing.begin), "byte 0 of what came later");
}

TEST(FaultNoteDeath, a_text_that_is_too_long_is_cut) {
  const Nothing nothing;
  const std::string name(5000, 'x');
  const FaultNote note(nothing.begin, kBytes, &name, &name_of_byte);
  EXPECT_DEATH(touch(nothing.begin), "byte 0 of x{900,1020}\n");
}

TEST(FaultNoteDeath, a_signal_that_was_sent_ends_the_process_too) {
  const Nothing nothing;
  const std::string name = "the weights";
  const FaultNote note(nothing.begin, kBytes, &name, &name_of_byte);
  EXPECT_DEATH(raise(SIGSEGV), "");
}

TEST(FaultNote, more_than_can_be_noted_do_no_harm) {
  const Nothing nothing;
  const std::string name = "the weights";
  std::vector<std::unique_ptr<FaultNote>> notes;
  for (int i = 0; i < 100; ++i)
    notes.push_back(std::make_unique<FaultNote>(nothing.begin, kBytes, &name, &name_of_byte));
}

}  // namespace
}  // namespace taco
