// harp-stat: how the engines of running processes stand. It reads a page of memory that each engine
// keeps (stat/layout.h), so it asks nothing of them and costs them nothing.
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/parse_number.h"
#include "harp/tools/arguments.h"
#include "harp/tools/stat_report.h"

namespace taco::harp::statistics {
namespace {

constexpr char kAbout[] =
    "usage: harp-stat [PID ...] [options]\n"
    "\n"
    "Shows sessions, paths, round trips, rates, retransmits and drops of the HARP\n"
    "engines in these processes; without a PID of all that this user may look into.\n"
    "\n";

// A shorter one would keep a core busy, and be over before the kernel's clock has moved.
constexpr double kLeastInterval = 0.01;

struct Choices {
  std::vector<pid_t> pids;
  double interval = 1;
  bool watch = false, json = false, prometheus = false, help = false;
};

std::vector<Option> options_for(Choices& choices) {
  return {
      {"--watch", "", "Goes on, with a look every interval, until it is stopped.",
       set_flag(choices.watch)},
      {"--interval", "S",
       "Seconds between two looks, 0.01 or more, from which rates are known (1); a table without "
       "--watch takes two, unless it is 0.",
       set_number(choices.interval, 0, 3600)},
      {"--json", "", "One look as a JSON object in one line; with --watch, a line for each.",
       set_flag(choices.json)},
      {"--prometheus", "", "One look in the text format of Prometheus.",
       set_flag(choices.prometheus)},
      {"--help", "", "Shows this.", set_flag(choices.help)},
  };
}

Status take_pid(const std::string& text, std::vector<pid_t>& pids) {
  const auto pid = parse_number<pid_t>(text);
  if (!pid || *pid <= 0) {
    return invalid("\"" + text + "\" is no process: give its number (ps shows it)");
  }
  pids.push_back(*pid);
  return {};
}

Status check(const Choices& choices) {
  if (choices.json && choices.prometheus) return invalid("--json or --prometheus, not both");
  if (choices.prometheus && choices.watch) {
    return invalid("--prometheus is one look, so without --watch: whoever scrapes asks again");
  }
  if (choices.interval != 0 && choices.interval < kLeastInterval) {
    return invalid("--interval is shorter than 0.01 s: give 0.01 or more, or 0 for one look");
  }
  if (choices.watch && choices.interval == 0) return invalid("--watch needs an --interval above 0");
  return {};
}

Everything look(const Choices& choices) {
  if (choices.pids.empty()) return look_at_all();
  Everything all;
  for (const pid_t pid : choices.pids) {
    auto looks = look_at(pid);
    if (looks.ok()) {
      all.add(std::move(looks).value());
    } else {
      all.problems.push_back(looks.status().message());
    }
  }
  return all;
}

void print_problems(const Everything& all) {
  for (const std::string& each : all.problems)
    std::fprintf(stderr, "harp-stat: %s\n", each.c_str());
  if (!all.looks.empty() || !all.problems.empty()) return;
  std::fprintf(stderr,
               "harp-stat: no process that this user may look into has an engine of HARP; a "
               "process has one from its first process group on\n");
}

void pause_for(double seconds) { poll(nullptr, 0, static_cast<int>(seconds * 1000)); }

void show(const Choices& choices, const Everything& now, const Everything& before) {
  std::string text;
  if (choices.json) {
    text = json_of(now) + "\n";
  } else if (choices.prometheus) {
    text = prometheus_of(now.looks);
  } else {
    text = table_of(now.looks, before.looks);
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Exit statuses: 0, 1 where something that was asked for cannot be shown.
int run(const Choices& choices) {
  const bool table = !choices.json && !choices.prometheus;
  const bool screen = choices.watch && table && isatty(STDOUT_FILENO) != 0;
  Everything before, now = look(choices);
  if (table && choices.interval > 0 && !now.looks.empty()) {
    pause_for(choices.interval);
    before = std::exchange(now, {});
    now = look(choices);
  }
  for (;;) {
    if (screen) std::fputs("\033[H\033[J", stdout);
    show(choices, now, before);
    print_problems(now);
    const bool failed = now.looks.empty() || !now.problems.empty();
    if (!choices.watch || now.looks.empty() || std::ferror(stdout) != 0) return failed ? 1 : 0;
    if (!screen && table) std::fputs("\n", stdout);
    pause_for(choices.interval);
    before = std::exchange(now, {});
    now = look(choices);
  }
}

}  // namespace

int main_of(const std::vector<std::string>& arguments) {
  Choices choices;
  const std::vector<Option> options = options_for(choices);
  Status status = take_arguments(arguments, options, [&](const std::string& argument) {
    return take_pid(argument, choices.pids);
  });
  if (status.ok()) status = check(choices);
  if (!status.ok()) {
    std::fprintf(stderr, "harp-stat: %s\n", status.message().c_str());
    return 2;
  }
  if (choices.help) {
    std::fputs((kAbout + help_of(options)).c_str(), stdout);
    return 0;
  }
  return run(choices);
}

}  // namespace taco::harp::statistics

int main(int argc, char** argv) {
  return taco::harp::statistics::main_of(std::vector<std::string>(argv + 1, argv + argc));
}
