#include "base/env.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "base/conf_file.h"
#include "base/env_table.h"
#include "base/log.h"
#include "base/names.h"
#include "base/per_process.h"

extern char** environ;

namespace taco {
namespace {

using env_internal::Variable;
using env_internal::variables;

const Variable* find(std::string_view name) {
  for (const Variable& variable : variables()) {
    if (name == variable.name) return &variable;
  }
  return nullptr;
}

std::string unknown_name_warning(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Variable& variable : variables()) known.emplace_back(variable.name);
  const std::string near = suggestion(name, known);
  return "environment variable " + std::string(name) + " is not known" +
         (near.empty() ? " (docs/environment.md has all)" : near);
}

std::vector<std::string> process_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  return environment;
}

struct Parsed {
  std::mutex mutex;
  std::optional<Env> env;
};

constinit PerProcess<Parsed> parsed;

constexpr const char* kHeadOfTable =
    "| name | type | unit | default | accepted | meaning |\n"
    "|---|---|---|---|---|---|\n";

std::string cell_of_table(std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '|') escaped.push_back('\\');  // a bar ends a cell
    escaped.push_back(c);
  }
  return escaped;
}

std::string row_of_table(std::string_view name, std::string_view type, std::string_view unit,
                         const std::string& fallback, std::string_view accepted,
                         std::string_view meaning) {
  return "| `" + std::string(name) + "` | " + std::string(type) + " | " +
         (unit.empty() ? "-" : std::string(unit)) + " | " +
         (fallback.empty() ? "(none)" : "`" + fallback + "`") + " | " + cell_of_table(accepted) +
         " | " + cell_of_table(meaning) + " |\n";
}

LogLevel log_level_named(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return LogLevel::kInfo;
}

}  // namespace

Result<Env> Env::parse(const std::vector<std::string>& environment,
                       std::vector<std::string>* warnings) {
  Env env;
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    const bool ours = entry.starts_with("TACO_") || entry.starts_with("LIGHT_");
    if (equals == std::string::npos || !ours) continue;
    const std::string name = entry.substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    const Variable* variable = find(name);
    if (variable == nullptr) {
      if (name.starts_with("TACO_SIM_") || name.starts_with("TACO_TEST_")) continue;  // our tests'
      if (warnings != nullptr) warnings->push_back(unknown_name_warning(name));
      continue;
    }
    if (value.empty()) continue;  // NAME= is how a shell takes a setting back
    if (!variable->set(env, value)) {
      return Status(Code::kInvalidArgument, "environment variable " + name + " is \"" + value +
                                                "\", but must be " + variable->accepted);
    }
  }
  return env;
}

Result<Env> Env::get() {
  std::lock_guard lock(parsed().mutex);
  if (parsed().env) return *parsed().env;
  std::vector<std::string> warnings;
  auto environment = conf_environment();
  if (!environment.ok()) return environment.status();
  for (std::string& each : process_environment()) environment->push_back(std::move(each));
  Result<Env> result = parse(*environment, &warnings);
  if (!result.ok()) return result;
  set_log_level(log_level_named(result->log));
  for (const std::string& warning : warnings) TACO_LOG_WARNING("env", "%s", warning.c_str());
  parsed().env = *result;
  return result;
}

std::vector<Env::Setting> Env::light_settings() const {
  std::vector<Setting> settings;
  for (const Variable& variable : variables()) {
    if (std::string_view(variable.name).starts_with("LIGHT_"))
      settings.push_back({variable.name, variable.show(*this)});
  }
  return settings;
}

std::vector<Env::Row> Env::table() {
  const Env defaults;
  // A file that is wrong is an error where the environment is parsed.
  const auto conf = conf_environment();
  const Result<Env> host = parse(conf.ok() ? conf.value() : std::vector<std::string>(), nullptr);
  std::vector<Row> rows;
  for (const Variable& variable : variables()) {
    const char* text = std::getenv(variable.name);
    Row row{variable.name,
            variable.type,
            variable.unit,
            variable.show(defaults),
            variable.meaning,
            variable.show(host.ok() ? host.value() : defaults),
            text != nullptr && *text != '\0'};
    if (row.is_set) {
      Env env;
      row.value = variable.set(env, text) ? variable.show(env) : std::string(text) + " (malformed)";
    }
    rows.push_back(std::move(row));
  }
  for (const env_internal::Listed& each : env_internal::listed()) {
    const char* text = std::getenv(each.name);
    const bool is_set = text != nullptr && *text != '\0';
    rows.push_back({each.name, each.type, each.unit, each.fallback, each.meaning,
                    is_set ? text : each.fallback, is_set});
  }
  return rows;
}

std::string environment_markdown() {
  const Env defaults;
  std::string text =
      "# Environment variables\n\n"
      "Read once, at the first use of the library. A malformed value is an error that names it; "
      "an unknown `TACO_*` or `LIGHT_*` name is a warning that names the nearest known one; an "
      "empty "
      "value counts as not set. This page is generated: `python -m taco_torch.info "
      "--env-markdown`.\n\n";
  text += kHeadOfTable;
  for (const Variable& each : variables()) {
    text += row_of_table(each.name, each.type, each.unit, each.show(defaults), each.accepted,
                         each.meaning);
  }
  text +=
      "\n## Of a Horovod-compatible job\n\n"
      "Read at each `hvd.init()` ([horovod.md](horovod.md)), or when `tacorun` starts "
      "([launch.md](launch.md)). A malformed value is an error that names it; an empty value "
      "counts as not set.\n\n";
  text += kHeadOfTable;
  for (const env_internal::Listed& each : env_internal::listed()) {
    text +=
        row_of_table(each.name, each.type, each.unit, each.fallback, each.accepted, each.meaning);
  }
  return text;
}

}  // namespace taco
