// The rows behind base/env.h: one per variable. Private to base; everyone else reads Env.
#pragma once

#include <span>
#include <string>

#include "base/env.h"

namespace taco::env_internal {

struct Variable {
  const char* name;
  const char* type;
  const char* unit;      // "" where a unit has no meaning
  const char* accepted;  // completes "must be ..."
  const char* meaning;
  bool (*set)(Env& env, const std::string& value);  // false: malformed, env unchanged
  std::string (*show)(const Env& env);
};

std::span<const Variable> variables();

// A variable that Python reads by itself, more than once in a process
// (src/taco_torch/horovod/settings.py, src/taco_torch/launch/arguments.py). It stands here for the
// table alone.
struct Listed {
  const char* name;
  const char* type;
  const char* unit;
  const char* fallback;
  const char* accepted;
  const char* meaning;
};

std::span<const Listed> listed();

}  // namespace taco::env_internal
