// The settings of a host, which harp-setup writes down once for all programs there: lines of
// "key = value" that stand for environment variables, which override them. The first key is the
// version; a key that is unknown, a malformed value or another version is an error that names the
// line, and nothing of the file holds.
//
// Any thread.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace taco {

inline constexpr char kConfPlace[] = "/etc/taco/harp.conf";
inline constexpr int kConfVersion = 1;

struct ConfKey {
  const char* key;
  const char* variable;  // whose values it takes
};
std::span<const ConfKey> conf_keys();

// kInvalidArgument: there is no such key, or it takes no such value.
Status check_conf_key(const std::string& key);
Status check_conf_setting(const std::string& key, const std::string& value);

using ConfLines = std::vector<std::pair<std::string, std::string>>;  // keys and values, in order

// The keys and values of a file with such a text. `place` is for errors.
Result<ConfLines> parse_conf(const std::string& text, const std::string& place);
// A text of which parse_conf makes `lines`.
std::string conf_text(const ConfLines& lines);

// The lines of the file, which belongs to root or this user and is writable by nobody else. None
// where there is no file at kConfPlace; elsewhere that is an error.
Result<ConfLines> read_conf(const std::string& place);

// For errors about a variable's value, behind it: " (driver, line 3 of /etc/taco/harp.conf)" where
// the environment does not set it and that line does. `value`: "" of any.
std::string conf_origin(const char* variable, const std::string& value);
// The setting itself, with where it stands: `TACO_HARP_DRIVER="pigeon" (driver, line 3 of ...)`.
std::string setting_text(const char* variable, const std::string& value);

// The file that holds for this process by TACO_HARP_CONF; kNoConf: none does.
std::string conf_place();
inline constexpr char kNoConf[] = "none";
// Its settings as NAME=value strings.
Result<std::vector<std::string>> conf_environment();

}  // namespace taco
