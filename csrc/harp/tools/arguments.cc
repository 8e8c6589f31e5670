#include "harp/tools/arguments.h"

#include <algorithm>
#include <charconv>

#include "base/names.h"
#include "base/parse_number.h"

namespace taco::harp {
namespace {

std::string unknown_option(std::string_view name, const std::vector<Option>& options) {
  std::vector<std::string_view> known;
  known.reserve(options.size());
  for (const Option& option : options) known.emplace_back(option.name);
  const std::string near = suggestion(name, known);
  return std::string(name) + " is unknown" + (near.empty() ? "; " : near + " ") +
         "--help lists all";
}

template <class Number>
std::string shown(Number number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

template <class Number>
std::function<Status(const std::string&)> set_any_number(Number& number, Number least, Number most,
                                                         const char* kind) {
  return [&number, least, most, kind](const std::string& text) {
    const auto value = parse_number<Number>(text);
    if (value && *value >= least && *value <= most) {
      number = *value;
      return Status();
    }
    return invalid("must be " + std::string(kind) + " from " + shown(least) + " to " + shown(most));
  };
}

}  // namespace

Status take_arguments(const std::vector<std::string>& arguments, const std::vector<Option>& options,
                      const std::function<Status(const std::string&)>& take_other) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("-") || argument == "-") {
      TACO_RETURN_IF_ERROR(take_other(argument));
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto option = std::ranges::find(options, name, &Option::name);
    if (option == options.end()) return invalid(unknown_option(name, options));
    std::string value;
    if (option->value.empty()) {
      if (equals != std::string::npos) return invalid(name + " takes no value");
    } else if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (++i < arguments.size()) {
      value = arguments[i];
    } else {
      return invalid(name + " needs a value: " + name + " " + option->value);
    }
    const Status taken = option->take(value);
    if (!taken.ok()) return taken.with_prefix(name + " " + value + ": ");
  }
  return {};
}

std::string help_of(const std::vector<Option>& options) {
  constexpr std::size_t kColumn = 24, kWidth = 78;
  std::string text;
  for (const Option& option : options) {
    std::string line = "  " + option.name + (option.value.empty() ? "" : " " + option.value);
    if (line.size() >= kColumn) {
      text += line + "\n";
      line.clear();
    }
    line.resize(kColumn, ' ');
    for (std::size_t at = 0; at < option.help.size();) {
      const std::size_t end = std::min(option.help.find(' ', at), option.help.size());
      if (line.size() > kColumn && line.size() + 1 + (end - at) > kWidth) {
        text += line + "\n";
        line.assign(kColumn, ' ');
      }
      if (line.size() > kColumn) line += ' ';
      line += option.help.substr(at, end - at);
      at = end + 1;
    }
    text += line + "\n";
  }
  return text;
}

std::function<Status(const std::string&)> set_flag(bool& flag) {
  return [&flag](const std::string&) {
    flag = true;
    return Status();
  };
}

std::function<Status(const std::string&)> set_text(std::string& text) {
  return [&text](const std::string& value) {
    text = value;
    return Status();
  };
}

std::function<Status(const std::string&)> set_choice(std::string& text,
                                                     std::vector<std::string> choices) {
  return [&text, choices = std::move(choices)](const std::string& value) {
    if (std::ranges::count(choices, value) > 0) {
      text = value;
      return Status();
    }
    std::string all;
    for (const std::string& choice : choices) {
      append_name(all, choice);
    }
    return invalid("must be one of " + all);
  };
}

std::function<Status(const std::string&)> set_number(double& number, double least, double most) {
  return set_any_number(number, least, most, "a number");
}

std::function<Status(const std::string&)> set_integer(std::int64_t& number, std::int64_t least,
                                                      std::int64_t most) {
  return set_any_number(number, least, most, "an integer");
}

Result<std::size_t> bytes_from(const std::string& text, std::size_t least, std::size_t most) {
  std::string digits = text;
  int shift = 0;
  const std::size_t unit = digits.empty() ? 0 : std::string_view("KMG").find(digits.back()) + 1;
  if (unit != 0) {
    shift = static_cast<int>(10 * unit);
    digits.pop_back();
  }
  const auto value = parse_number<std::uint64_t>(digits);
  if (value && *value <= most >> shift && *value << shift >= least) return *value << shift;
  return invalid("must be bytes from " + shown(least) + " to " + shown(most) +
                 ", with K, M or G behind for 1024 of each other");
}

std::function<Status(const std::string&)> set_bytes(std::size_t& bytes, std::size_t least,
                                                    std::size_t most) {
  return [&bytes, least, most](const std::string& text) {
    const auto value = bytes_from(text, least, most);
    if (value.ok()) bytes = value.value();
    return value.status();
  };
}

}  // namespace taco::harp
