// harp-setup: sets a host up for HARP once, or says what it lacks.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/conf_file.h"
#include "base/core_list.h"
#include "base/parse_number.h"
#include "harp/drivers/networks.h"
#include "harp/tools/arguments.h"
#include "harp/tools/setup_checks.h"

namespace taco::harp {
namespace {

constexpr char kAbout[] =
    "usage: harp-setup [options]\n"
    "\n"
    "Sets this host up for HARP: mends what it finds wanting, as far as this user may,\n"
    "and writes the host's settings down for all programs. What it changes in the\n"
    "kernel holds until the next start of the host.\n"
    "\n";

// A setting that is to be written down, or (without a value) taken back.
struct Change {
  std::string key;
  std::optional<std::string> value;
};

struct Wishes {
  bool check = false, help = false;
  std::string conf;  // "": as programs have it
  std::vector<Change> changes;
};

Status take_setting(const std::string& text, std::vector<Change>& changes) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || text.find('\n') != std::string::npos) {
    return invalid("must be KEY=VALUE, as paths=4");
  }
  const Change change{text.substr(0, equals), text.substr(equals + 1)};
  TACO_RETURN_IF_ERROR(check_conf_setting(change.key, *change.value));
  changes.push_back(change);
  return {};
}

Status take_key_to_unset(const std::string& key, std::vector<Change>& changes) {
  TACO_RETURN_IF_ERROR(check_conf_key(key));
  changes.push_back({key, std::nullopt});
  return {};
}

std::vector<Option> options_for(Wishes& wishes) {
  std::string keys;
  for (const ConfKey& each : conf_keys()) {
    keys += (keys.empty() ? "" : ", ") + std::string(each.key);
  }
  return {
      {"--check", "",
       "Changes nothing; exit status 1 and the command that mends it for each thing "
       "that is wanting.",
       set_flag(wishes.check)},
      {"--set", "KEY=VALUE", "A setting to write down: " + keys + ". May be given several times.",
       [&wishes](const std::string& text) { return take_setting(text, wishes.changes); }},
      {"--unset", "KEY", "A setting to take back. May be given several times.",
       [&wishes](const std::string& key) { return take_key_to_unset(key, wishes.changes); }},
      {"--conf", "FILE",
       std::string(
           "Where settings are written down (TACO_HARP_CONF, by which programs read it, or ") +
           kConfPlace + ").",
       set_text(wishes.conf)},
      {"--help", "", "Shows this.", set_flag(wishes.help)},
  };
}

// Behind what stands on stdout already, also where both go into one file.
int fail_with(const std::string& why) {
  std::fflush(stdout);
  std::fprintf(stderr, "harp-setup: %s\n", why.c_str());
  return 1;
}

int succeed() {
  std::printf("Set up HARP successfully\n");
  return 0;
}

std::string value_of(const ConfLines& lines, const std::string& key, const std::string& fallback) {
  const auto found =
      std::ranges::find_if(lines, [&](const auto& line) { return line.first == key; });
  return found == lines.end() ? fallback : found->second;
}

// The settings that there were, with the changes.
Result<ConfLines> merged(const Wishes& wishes) {
  ConfLines lines;
  if (wishes.conf != kNoConf && access(wishes.conf.c_str(), F_OK) == 0) {
    auto read = read_conf(wishes.conf);
    if (!read.ok()) return read;
    lines = std::move(read).value();
  }
  if (lines.empty()) lines.emplace_back("version", std::to_string(kConfVersion));
  for (const Change& change : wishes.changes) {
    std::erase_if(lines, [&](const auto& line) { return line.first == change.key; });
    if (change.value) lines.emplace_back(change.key, *change.value);
  }
  return lines;
}

// Settings that are good by themselves and that every program here would stop at.
std::string contradiction_in(const ConfLines& lines) {
  const std::string engines = value_of(lines, "engines", "1");
  const std::string driver = value_of(lines, "driver", "auto");
  const auto network = network_named(driver);
  const auto count = parse_number<std::uint32_t>(engines);
  const Status refused = network.ok() && count ? network.value()->check_engines(*count) : Status();
  if (!refused.ok()) {
    return "engines=" + engines + " with driver=" + driver + ": " + refused.message();
  }
  const std::string cores = value_of(lines, "cores", "");
  for (const int core : cores_from(cores).value_or(std::vector<int>())) {
    const std::string place = "/sys/devices/system/cpu/cpu" + std::to_string(core);
    if (access(place.c_str(), F_OK) != 0) {
      return "cores=" + cores + " names core " + std::to_string(core) +
             ", which this host does not have";
    }
  }
  return "";
}

// A folder that is made here is for everybody to read, whatever the umask: all programs of the host
// look into it. One that was there stays as its people have it. "": it is there.
std::string make_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0755) != 0) return errno == EEXIST ? "" : strerror(errno);
  return chmod(folder.c_str(), 0755) == 0 ? "" : strerror(errno);
}

// Programs that read it meanwhile find the old file or the new one.
std::string write_conf(const std::string& place, const std::string& text) {
  const std::size_t slash = place.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : place.substr(0, slash);
  const std::string refused = folder.empty() ? "" : make_folder(folder);
  if (!refused.empty()) return "no folder " + folder + ": " + refused;
  const std::string part = place + ".part";
  unlink(part.c_str());
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return strerror(errno);
  const bool written = fchmod(fd, 0644) == 0 &&
                       write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       fsync(fd) == 0;
  std::string why = written ? "" : strerror(errno);
  close(fd);
  if (written && rename(part.c_str(), place.c_str()) != 0) why = strerror(errno);
  if (!why.empty()) unlink(part.c_str());
  return why;
}

void tell(const Check& check, const char* state, const std::string& more) {
  std::printf("%-7s %-15s %s%s\n", state, check.name.c_str(), check.found.c_str(), more.c_str());
}

// How many things are wanting after it. The kernel may take a value and give less: so what was
// mended is looked at again.
int go_through(const std::function<std::vector<Check>()>& look, bool only_looks) {
  const std::vector<Check> before = look();
  std::vector<std::string> whys;
  for (const Check& check : before) {
    whys.push_back(check.good || only_looks ? "" : mend(check));
    if (whys.back().empty()) whys.back() = "the kernel gave no more";
  }
  const std::vector<Check> after = only_looks ? before : look();
  int wanting = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (after[i].good) {
      tell(after[i], before[i].good ? "ok" : "mended", "");
      continue;
    }
    ++wanting;
    tell(after[i], "WANTING",
         (only_looks ? "" : " (" + whys[i] + ")") + "\n        mend it: " + after[i].mend);
  }
  return wanting;
}

int run(const Wishes& wishes) {
  const auto lines = merged(wishes);
  if (!lines.ok()) return fail_with(lines.status().message());
  const std::string contradiction = contradiction_in(lines.value());
  if (!contradiction.empty()) return fail_with(contradiction);
  if (wishes.conf == kNoConf && !wishes.changes.empty()) {
    return fail_with(
        "TACO_HARP_CONF=none has programs read no settings of the host, so none are "
        "written: unset it, or name a file by --conf");
  }
  const SeenHost seen = see_host(value_of(lines.value(), "driver", "auto"),
                                 value_of(lines.value(), "interfaces", ""));
  if (!seen.problem.empty()) return fail_with(seen.problem);
  constexpr std::size_t kWanted = std::size_t{4} << 20;
  const std::string buffer = value_of(lines.value(), "socket_buffer", "0");
  const auto bytes = bytes_from(buffer, 0, std::size_t{1} << 40);
  const std::size_t wanted = bytes.ok() && bytes.value() > 0 ? bytes.value() : kWanted;
  const int wanting = go_through([&] { return check_host(seen.host, wanted); }, wishes.check);
  if (wanting > 0) return fail_with(std::to_string(wanting) + " wanting; the lines above mend it");
  if (wishes.check) return 0;
  if (wishes.conf == kNoConf) return succeed();
  const std::string why = write_conf(wishes.conf, conf_text(lines.value()));
  if (!why.empty()) {
    return fail_with(wishes.conf + " cannot be written: " + why +
                     "; run it as root, or name another file by --conf");
  }
  return succeed();
}

}  // namespace

int set_up(const std::vector<std::string>& arguments) {
  Wishes wishes;
  const std::vector<Option> options = options_for(wishes);
  const Status status = take_arguments(arguments, options, [](const std::string& other) {
    return invalid("\"" + other + "\" is no option; --help lists all");
  });
  if (!status.ok()) {
    std::fprintf(stderr, "harp-setup: %s\n", status.message().c_str());
    return 2;
  }
  if (wishes.help) {
    std::fputs((kAbout + help_of(options)).c_str(), stdout);
    return 0;
  }
  if (wishes.conf.empty()) wishes.conf = conf_place();
  return run(wishes);
}

}  // namespace taco::harp

int main(int argc, char** argv) {
  return taco::harp::set_up(std::vector<std::string>(argv + 1, argv + argc));
}
