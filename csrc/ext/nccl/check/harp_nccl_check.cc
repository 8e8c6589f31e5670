// harp-nccl-check: does with a network plugin what NCCL does, and says what is wrong with it.
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "ext/nccl/check/checks.h"
#include "ext/nccl/check/processes.h"
#include "harp/tools/arguments.h"

namespace harp::nccl::check {
namespace {

using taco::harp::Option;

constexpr char kAbout[] =
    "usage: harp-nccl-check [options] PLUGIN\n"
    "\n"
    "Loads a network plugin of NCCL's, such as libnccl-net-harp.so, and calls it as NCCL\n"
    "does, in several processes on this host, without a GPU. Exit status 1 if it does\n"
    "something that NCCL would hang, crash or give wrong results by.\n"
    "\n";

struct Wishes {
  bool help = false, list = false;
  std::string only, namespaces, plugin;
  std::int64_t table = 0, seconds = 60;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

std::vector<Option> options_for(Wishes& wishes) {
  return {
      {"--check", "NAMES", "Only these checks, with commas between them.",
       taco::harp::set_text(wishes.only)},
      {"--list", "", "Shows the checks.", taco::harp::set_flag(wishes.list)},
      {"--table", "VERSION", "Only this version of the table: 10, 11 or 12.",
       taco::harp::set_integer(wishes.table, 10, 12)},
      {"--seconds", "S", "The time that one check may take (60).",
       taco::harp::set_integer(wishes.seconds, 1, 3600)},
      {"--namespaces", "NAMES",
       "Network namespaces that the processes run in, in turn, with commas between them (needs "
       "root).",
       taco::harp::set_text(wishes.namespaces)},
      {"--help", "", "Shows this.", taco::harp::set_flag(wishes.help)},
  };
}

int complain(const std::string& why) {
  std::fprintf(stderr, "harp-nccl-check: %s\n", why.c_str());
  return 2;
}

std::string own_program() {
  std::array<char, PATH_MAX> path{};
  const ssize_t bytes = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return bytes > 0 ? std::string(path.data(), static_cast<std::size_t>(bytes)) : "harp-nccl-check";
}

// The versions of the table of functions to check: the one asked for, or all that the plugin has.
std::vector<int> tables_of(const Wishes& wishes) {
  if (wishes.table != 0) return {static_cast<int>(wishes.table)};
  std::vector<int> tables;
  for (const int version : {10, 11, 12}) {
    if (Network::load(wishes.plugin, version).ok()) tables.push_back(version);
  }
  return tables;
}

int check_plugin(const Wishes& wishes) {
  std::vector<const Check*> checks;
  for (const Check& check : all_checks()) {
    if (wishes.only.empty()) checks.push_back(&check);
  }
  for (const std::string& name : split(wishes.only)) {
    const Check* const check = check_named(name);
    if (check == nullptr) return complain("--check \"" + name + "\": --list shows all that are");
    checks.push_back(check);
  }
  const auto loaded = Network::load(wishes.plugin, static_cast<int>(wishes.table));
  if (!loaded.ok()) return complain(loaded.status().message());
  int failures = 0;
  for (const int table : tables_of(wishes)) {
    for (const Check* const check : checks) {
      const std::string why =
          run(*check, {own_program(), wishes.plugin, table, wishes.seconds * taco::kSecond,
                       split(wishes.namespaces)});
      std::printf("%-6s v%d %-12s %s\n", why.empty() ? "ok" : "FAILED", table, check->name,
                  why.empty() ? check->demand : why.c_str());
      std::fflush(stdout);
      failures += why.empty() ? 0 : 1;
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main_of(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "--rank") return play(arguments);
  Wishes wishes;
  const auto options = options_for(wishes);
  const Status status =
      taco::harp::take_arguments(arguments, options, [&](const std::string& other) -> Status {
        if (!wishes.plugin.empty() || other.starts_with("-")) {
          return taco::invalid("\"" + other + "\" is no option; --help lists all");
        }
        // Not looked for among the system's libraries.
        wishes.plugin = other.find('/') == std::string::npos ? "./" + other : other;
        return {};
      });
  if (!status.ok()) return complain(status.message());
  if (wishes.help) {
    std::fputs((kAbout + taco::harp::help_of(options)).c_str(), stdout);
    return 0;
  }
  if (wishes.list) {
    for (const Check& check : all_checks()) std::printf("%-12s %s\n", check.name, check.demand);
    return 0;
  }
  if (wishes.plugin.empty()) return complain("name a plugin; --help shows how");
  return check_plugin(wishes);
}

}  // namespace harp::nccl::check

int main(int argc, char** argv) {
  return harp::nccl::check::main_of(std::vector<std::string>(argv + 1, argv + argc));
}
