// Schedules written step by step for a test, a program per rank.
#pragma once

#include <functional>
#include <vector>

#include "pg/planning/schedule_builder.h"

namespace taco::pg::testing {

using Program = std::function<void(ScheduleBuilder&)>;

// As many ranks as programs; a problem per rank.
inline std::vector<Schedule> write(const std::vector<Problem>& problems,
                                   const std::vector<Program>& programs) {
  std::vector<Schedule> schedules;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    ScheduleBuilder builder(problems[rank], static_cast<int>(rank),
                            static_cast<int>(programs.size()), 1 << 20);
    programs[rank](builder);
    schedules.push_back(builder.finish("test"));
  }
  return schedules;
}

// The same problem for all.
inline std::vector<Schedule> write(const Problem& problem, const std::vector<Program>& programs) {
  return write(std::vector<Problem>(programs.size(), problem), programs);
}

}  // namespace taco::pg::testing
