// Engines share nothing that is written while messages travel: not by name, which the writable
// sections of the libraries show, and not by lying in one cache line, which alignment rules out. So
// it holds for 64 engines as for two, whatever machine the test runs on.
#include <gtest/gtest.h>
#include <stdio.h>

#include <array>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/cache_line.h"
#include "harp/drivers/kernel/udp.h"
#include "harp/engine/engine_core.h"
#include "pg/execution/executor.h"
#include "pg/execution/operation_state.h"
#include "pg/group/group.h"

namespace taco {
namespace {

// Objects that an engine writes on its way and that any thread may have made.
template <class... Objects>
constexpr bool fill_lines_alone() {
  return ((alignof(Objects) % kCacheLine == 0 && sizeof(Objects) % kCacheLine == 0) && ...);
}
static_assert(fill_lines_alone<harp::EngineCore, harp::Peer, harp::UdpNic, pg::Group,
                               pg::OperationState, pg::Execution>());
// Parts of an engine that other threads write beside it.
static_assert(fill_lines_alone<harp::SubmitQueue, harp::Token, harp::Duty>());

// A variable of the process that is not constant, and when it is written. None is while messages
// travel.
struct Known {
  std::string_view name;
  std::string_view written;
};
constexpr auto kKnown = std::to_array<Known>({
    {"taco::(anonymous namespace)::current_level", "by set_log_level"},
    {"taco::(anonymous namespace)::current_rank", "when the default group is made"},
    {"taco::(anonymous namespace)::current_sink", "by tests"},
    {"taco::(anonymous namespace)::generation", "in a forked child"},
    {"taco::(anonymous namespace)::slots", "when a descriptor opens or closes"},
    {"taco::(anonymous namespace)::slots_used", "when a descriptor opens"},
    {"taco::(anonymous namespace)::forking", "by forks, and when a session takes keys"},
    {"taco::(anonymous namespace)::install_handler()::installed", "once"},
    {"taco::(anonymous namespace)::handled_before", "once"},
    {"taco::(anonymous namespace)::noted", "when a page store opens or closes"},
    {"taco::FaultNote::FaultNote(std::byte const*, unsigned long, void const*, unsigned long (*)"
     "(void const*, unsigned long, char*, unsigned long))::installed",
     "once"},
    {"taco::(anonymous namespace)::parsed", "once in a process"},
    {"taco::completion::(anonymous namespace)::pool", "once in a process"},
    {"taco::timeline::(anonymous namespace)::recorder", "once"},
    {"taco::Status::message[abi:cxx11]() const::empty", "once"},
    {"taco::kernels::(anonymous namespace)::chosen()::choice", "once"},
    {"taco::kernels::(anonymous namespace)::host()::detected", "once"},
    {"taco::harp::prepare_sealing(taco::harp::Security)::prepared", "once"},
    {"taco::harp::(anonymous namespace)::held_stacks", "once"},
    {"taco::harp::(anonymous namespace)::prepare_exit()::prepared", "once"},
    {"taco::harp::(anonymous namespace)::process_dpdk()::dpdk", "once"},
    {"taco::harp::(anonymous namespace)::registry", "once in a process"},
    {"taco::harp::(anonymous namespace)::known", "once in a process"},
});

struct Variable {
  std::string name, section;
};

// A line of objdump's symbol table: value, seven flags, section, size, visibility, name.
bool read_variable(const std::string& line, Variable* variable) {
  const std::size_t flags = line.find(' ');
  if (flags == std::string::npos || line.size() < flags + 9 || line[flags + 7] != 'O') return false;
  std::istringstream rest(line.substr(flags + 8));
  std::string size;
  rest >> variable->section >> size >> std::ws;
  std::getline(rest, variable->name);
  constexpr std::string_view kHidden = ".hidden ", kGuard = "guard variable for ";
  if (variable->name.starts_with(kHidden)) variable->name.erase(0, kHidden.size());
  if (variable->name.starts_with(kGuard)) variable->name.erase(0, kGuard.size());
  const std::string_view section = variable->section;
  return (section.starts_with(".data") || section.starts_with(".bss")) &&
         !section.starts_with(".data.rel.ro") && !variable->name.starts_with("DW.ref.");
}

// The writable variables of a library or object file that all threads of a process share.
std::vector<Variable> variables_of(const std::string& file) {
  std::vector<Variable> found;
  FILE* const table = popen((TACO_OBJDUMP " --syms --demangle " + file).c_str(), "r");
  EXPECT_NE(table, nullptr);
  std::array<char, 8192> line;
  while (fgets(line.data(), line.size(), table) != nullptr) {
    std::string text = line.data();
    if (text.ends_with('\n')) text.pop_back();
    Variable variable;
    if (read_variable(text, &variable)) found.push_back(std::move(variable));
  }
  EXPECT_EQ(pclose(table), 0) << file;
  return found;
}

TEST(SharedLines, HoldNoVariableThatIsWrittenWhileMessagesTravel) {
  std::set<std::string_view> found;
  std::istringstream libraries(TACO_LIBRARIES);
  std::size_t read = 0;
  for (std::string library; libraries >> library; ++read) {
    for (const Variable& variable : variables_of(library)) {
      const auto known = std::ranges::find(kKnown, variable.name, &Known::name);
      if (known != kKnown.end()) found.insert(known->name);
      EXPECT_NE(known, kKnown.end())
          << variable.name << " in " << variable.section << " of " << library
          << ": engines share it. Give each its own; or, if it is not written while messages "
             "travel, say here when it is";
    }
  }
  EXPECT_EQ(read, 3u) << TACO_LIBRARIES;
  for (const Known& each : kKnown)
    EXPECT_TRUE(found.contains(each.name)) << "no more " << each.name;
}

TEST(SharedLines, AreFoundInASymbolTable) {
  Variable variable;
  EXPECT_TRUE(
      read_variable("0000000000000000 l     O .bss\t0000000000000004 taco::packets", &variable));
  EXPECT_EQ(variable.name, "taco::packets");
  EXPECT_TRUE(read_variable(
      "0000000000000000 u     O .bss._ZN\t0000000000000008 .hidden guard variable for f()::x",
      &variable));
  EXPECT_EQ(variable.name, "f()::x");
  EXPECT_TRUE(read_variable("0000000000000010 g     O .data.rel\t0000000000000008 x", &variable));
  for (const char* other : {"0000000000000000 l     O .rodata\t0000000000000004 constant",
                            "0000000000000000 l     O .data.rel.ro.local\t0000000000000004 table",
                            "0000000000000000 l     O .tbss\t0000000000000001 of_a_thread",
                            "0000000000000000 g     F .text\t0000000000000004 function()",
                            "0000000000000000 l    d  .bss\t0000000000000000 .bss", ""}) {
    EXPECT_FALSE(read_variable(other, &variable)) << other;
  }
}

}  // namespace
}  // namespace taco
