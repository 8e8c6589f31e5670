// JSON as tools print it: an object or a list that is written from front to back. Pure text.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace taco::harp {

// Every control character, quote and backslash is escaped.
inline std::string json_text(std::string_view value) {
  std::string text = "\"";
  for (const char each : value) {
    if (each == '"' || each == '\\') {
      text += '\\';
      text += each;
    } else if (static_cast<unsigned char>(each) < ' ') {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", each);
      text += escaped;
    } else {
      text += each;
    }
  }
  return text + '"';
}

class JsonObject {
 public:
  JsonObject& add(std::string_view name, std::string_view value) {
    return add_json(name, json_text(value));
  }
  JsonObject& add(std::string_view name, const char* value) {
    return add(name, std::string_view(value));
  }
  template <class Number>
  requires std::is_arithmetic_v<Number> JsonObject& add(std::string_view name, Number value) {
    if constexpr (std::is_same_v<Number, bool>) return add_json(name, value ? "true" : "false");
    char text[32];
    return add_json(name, {text, std::to_chars(text, text + sizeof text, value).ptr});
  }
  // Text that is JSON already.
  JsonObject& add_json(std::string_view name, std::string_view json) {
    if (!members_.empty()) members_ += ", ";
    members_ += json_text(name) + ": " + std::string(json);
    return *this;
  }
  std::string text() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

class JsonList {
 public:
  void add_json(std::string_view json) {
    if (!elements_.empty()) elements_ += ", ";
    elements_ += json;
  }
  std::string text() const { return "[" + elements_ + "]"; }

 private:
  std::string elements_;
};

}  // namespace taco::harp
