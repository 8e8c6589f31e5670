#include "base/conf_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env_table.h"
#include "base/file.h"
#include "base/names.h"

namespace taco {
namespace {

// The settings that are a host's own; what ranks must agree on is a job's.
constexpr auto kConfKeys = std::to_array<ConfKey>({
    {"driver", "TACO_HARP_DRIVER"},
    {"interfaces", "TACO_IFNAME"},
    {"port", "TACO_PORT"},
    {"mtu", "TACO_MTU"},
    {"paths", "TACO_PATHS"},
    {"socket_buffer", "TACO_SOCKET_BUFFER"},
    {"engines", "TACO_HARP_ENGINES"},
    {"cores", "TACO_HARP_CORES"},
    {"key_file", "TACO_HARP_KEY_FILE"},
});

const ConfKey* key_named(std::string_view key) {
  const auto found =
      std::ranges::find_if(kConfKeys, [&](const ConfKey& each) { return key == each.key; });
  return found == kConfKeys.end() ? nullptr : &*found;
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kBlank) - first + 1));
}

// The lines of a file that say something, by their numbers.
struct NumberedLine {
  int number;
  std::string text;
};
std::vector<NumberedLine> lines_of(const std::string& text) {
  std::vector<NumberedLine> lines;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = trimmed(std::string_view(text).substr(at, end - at));
    at = end + 1;
    ++number;
    if (!line.empty() && line.front() != '#') lines.push_back({number, line});
  }
  return lines;
}

// Key and value; nothing: it is no "key = value".
std::optional<std::pair<std::string, std::string>> setting_in(const std::string& line) {
  const std::size_t equals = line.find('=');
  if (equals == std::string::npos) return std::nullopt;
  return std::pair(trimmed(std::string_view(line).substr(0, equals)),
                   trimmed(std::string_view(line).substr(equals + 1)));
}

Status check_version(const std::string& value) {
  if (value == std::to_string(kConfVersion)) return {};
  return invalid("it is of version \"" + value + "\", and this taco_torch reads version " +
                 std::to_string(kConfVersion) + ": run its harp-setup again");
}

Status check_line(const ConfLines& before, const std::string& key, const std::string& value) {
  if (std::ranges::any_of(before, [&](const auto& line) { return line.first == key; })) {
    return invalid("the key \"" + key + "\" stands there twice");
  }
  if (key == "version") return check_version(value);
  if (before.empty()) return invalid("the first key must be version");
  return check_conf_setting(key, value);
}

}  // namespace

std::span<const ConfKey> conf_keys() { return kConfKeys; }

Status check_conf_key(const std::string& key) {
  if (key_named(key) != nullptr) return {};
  if (key == "version") return invalid("the key \"version\" is harp-setup's to write");
  std::vector<std::string_view> names = {"version"};
  for (const ConfKey& each : kConfKeys) names.emplace_back(each.key);
  const std::string near = suggestion(key, names);
  std::string all;
  for (const std::string_view each : names) append_name(all, each);
  return invalid("the key \"" + key + "\" is not known" +
                 (near.empty() ? "; there are " + all : near));
}

Status check_conf_setting(const std::string& key, const std::string& value) {
  TACO_RETURN_IF_ERROR(check_conf_key(key));
  const auto all = env_internal::variables();
  const auto variable = std::ranges::find_if(all, [&](const auto& each) {
    return std::string_view(each.name) == key_named(key)->variable;
  });
  Env scratch;
  if (!value.empty() && variable->set(scratch, value)) return {};
  return invalid(key + " is \"" + value + "\", but must be " + variable->accepted);
}

Result<ConfLines> parse_conf(const std::string& text, const std::string& place) {
  ConfLines lines;
  for (const NumberedLine& line : lines_of(text)) {
    const std::string where = place + ", line " + std::to_string(line.number) + ": ";
    const auto setting = setting_in(line.text);
    if (!setting) return invalid(where + "\"" + line.text + "\" is no \"key = value\"");
    const auto& [key, value] = *setting;
    TACO_RETURN_IF_ERROR(check_line(lines, key, value).with_prefix(where));
    lines.emplace_back(key, value);
  }
  if (!lines.empty()) return lines;
  return invalid(place + ": it has no version: run harp-setup again");
}

std::string conf_text(const ConfLines& lines) {
  std::string text = "# HARP's settings of this host, by harp-setup; docs/harp.md has every key.\n";
  for (const auto& [key, value] : lines) text += key + " = " + value + "\n";
  return text;
}

Result<ConfLines> read_conf(const std::string& place) {
  struct stat file {};
  if (stat(place.c_str(), &file) != 0) {
    if (errno == ENOENT && place == kConfPlace) return ConfLines();
    return invalid(place + " (TACO_HARP_CONF) cannot be read: " + strerror(errno));
  }
  const bool is_ours = file.st_uid == 0 || file.st_uid == geteuid();
  if (!is_ours || (file.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return invalid(place + " may be written by others than root and this user: chown root " +
                   place + " && chmod 644 " + place);
  }
  if (access(place.c_str(), R_OK) != 0) {
    return invalid(place + " cannot be read: " + strerror(errno));
  }
  return parse_conf(read_file(place), place);
}

std::string conf_place() {
  const char* const named = std::getenv("TACO_HARP_CONF");
  return named != nullptr && *named != '\0' ? named : kConfPlace;
}

std::string conf_origin(const char* variable, const std::string& value) {
  const char* const set = std::getenv(variable);
  const auto known = std::ranges::find_if(
      kConfKeys, [&](const ConfKey& each) { return std::string_view(each.variable) == variable; });
  const std::string place = conf_place();
  const bool is_set = set != nullptr && *set != '\0';
  if (is_set || known == kConfKeys.end() || place == kNoConf) return "";
  for (const NumberedLine& line : lines_of(read_file(place))) {
    const auto setting = setting_in(line.text);
    if (!setting || setting->first != known->key) continue;
    if (!value.empty() && setting->second != value) continue;
    return std::string(" (") + known->key + ", line " + std::to_string(line.number) + " of " +
           place + ")";
  }
  return "";
}

std::string setting_text(const char* variable, const std::string& value) {
  return std::string(variable) + "=\"" + value + "\"" + conf_origin(variable, value);
}

Result<std::vector<std::string>> conf_environment() {
  std::vector<std::string> environment;
  const std::string place = conf_place();
  if (place == kNoConf) return environment;
  const auto lines = read_conf(place);
  if (!lines.ok()) return lines.status();
  for (const auto& [key, value] : lines.value()) {
    if (const ConfKey* const known = key_named(key)) {
      environment.push_back(std::string(known->variable) + "=" + value);
    }
  }
  return environment;
}

}  // namespace taco
