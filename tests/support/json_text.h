// Whether a text is JSON, and nothing else. Test support.
#pragma once

#include <cctype>
#include <string_view>

namespace taco::testing {

class JsonText {
 public:
  explicit JsonText(std::string_view text) : left_(text) {}
  bool is_whole() { return value() && (skip(), left_.empty()); }

 private:
  void skip() {
    while (!left_.empty() && std::isspace(static_cast<unsigned char>(left_[0]))) take();
  }
  char take() {
    const char first = left_[0];
    left_.remove_prefix(1);
    return first;
  }
  bool take(char wanted) {
    skip();
    return !left_.empty() && left_[0] == wanted && (take(), true);
  }
  bool text() {
    if (!take('"')) return false;
    while (!left_.empty()) {
      const char next = take();
      if (next == '"') return true;
      if (static_cast<unsigned char>(next) < 0x20) return false;
      if (next == '\\' && (left_.empty() || std::string_view("\"\\/bfnrtu").find(take()) ==
                                                std::string_view::npos)) {
        return false;
      }
    }
    return false;
  }
  // Items up to the closing bracket, which is one of "]}".
  bool items(char end) {
    if (take(end)) return true;
    do {
      if (end == '}' && !(text() && take(':'))) return false;
      if (!value()) return false;
    } while (take(','));
    return take(end);
  }
  bool value() {
    skip();
    if (take('[')) return items(']');
    if (take('{')) return items('}');
    if (!left_.empty() && left_[0] == '"') return text();
    const std::size_t bytes = left_.find_first_not_of("-+.0123456789eEtrufalsn");
    const bool is_there = bytes != 0 && !left_.empty();
    left_.remove_prefix(bytes == std::string_view::npos ? left_.size() : bytes);
    return is_there;
  }

  std::string_view left_;
};

inline bool is_json(std::string_view text) { return JsonText(text).is_whole(); }

}  // namespace taco::testing
