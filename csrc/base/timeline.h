// A timeline of what the process has been doing, in the format of Chrome's trace viewer and
// Perfetto. Any part of the program adds events to a track, under any name: an operation of a
// group, the wait for a peer, the transfer of a page.
//
// One for the whole process, and off at first, in a forked child again. Any thread, under a mutex
// that is rarely contended.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace taco::timeline {

struct Event {
  std::string name;
  std::string track;  // events of one track stand in one line
  int process = 0;    // the rank, whose tracks stand together
  Time started = 0, ended = 0;
  std::string arguments;  // members of a JSON object: "\"bytes\":4,\"state\":\"completed\""
};

inline constexpr std::size_t kMaxEvents = 1 << 18;  // the oldest go first

bool enabled();
void enable(bool enabled);  // switching on forgets what was there

void add(Event event);  // does nothing while it is off

std::string chrome_json();

std::string quoted(std::string_view text);  // as a JSON string

}  // namespace taco::timeline
