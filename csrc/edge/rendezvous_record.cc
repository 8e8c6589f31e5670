#include "edge/rendezvous_record.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>

#include "base/names.h"
#include "base/random.h"
#include "edge/comparison.h"

namespace taco::edge {
namespace {

constexpr char kAnyMagic[] = "taco-meeting-", kMagic[] = "taco-meeting-5";
constexpr char kRefusal[] = "taco-refusal-1";
constexpr std::string_view kAnyMember = "taco-member-", kMember = "taco-member-1:";
constexpr std::size_t kMaxFieldBytes = 1 << 16;
constexpr std::size_t kMaxSettings = 64;

// Lengths of texts take one byte, or this one and eight more: the records of two ranks, with all
// their settings, stay within one packet of 1,500 bytes. The store speaks TCP, which larger ones
// bring to a halt where hosts have jumbo frames and the switch between them has not.
constexpr unsigned char kLongText = 0xFF;

// Up to the second format they took eight always, as they do in refusals to this day.
enum class Lengths { kShort, kWide };

class Writer {
 public:
  explicit Writer(Lengths lengths = Lengths::kShort) : lengths_(lengths) {}
  void text(std::string_view value) {
    if (lengths_ == Lengths::kWide) {
      number(value.size());
      bytes_.append(value);
      return;
    }
    const bool is_long = value.size() >= kLongText;
    bytes_.push_back(static_cast<char>(is_long ? kLongText : value.size()));
    if (is_long) number(value.size());
    bytes_.append(value);
  }
  void count(std::size_t value) { bytes_.push_back(static_cast<char>(value)); }
  void number(std::uint64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void real(double value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  std::string take() { return std::move(bytes_); }

 private:
  const Lengths lengths_;
  std::string bytes_;
};

// Reads past the end give zeros and clear ok().
class Reader {
 public:
  explicit Reader(std::string_view bytes, Lengths lengths = Lengths::kShort)
      : lengths_(lengths), bytes_(bytes) {}
  std::string text() {
    const std::uint64_t length = this->length();
    if (length > kMaxFieldBytes || length > bytes_.size()) {
      ok_ = false;
      return {};
    }
    std::string value(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
    return value;
  }
  std::size_t count() { return raw<unsigned char>(); }
  std::uint64_t number() { return raw<std::uint64_t>(); }
  double real() { return raw<double>(); }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::uint64_t length() {
    if (lengths_ == Lengths::kWide) return number();
    const std::uint64_t first = raw<unsigned char>();
    if (first != kLongText) return first;
    const std::uint64_t length = number();
    if (length < kLongText) ok_ = false;  // encode() writes it otherwise
    return length;
  }
  template <class T>
  T raw() {
    T value{};
    if (bytes_.size() < sizeof value) {
      ok_ = false;
      bytes_ = {};
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }

  const Lengths lengths_;
  std::string_view bytes_;
  bool ok_ = true;
};

// A record begins with a short name.
Lengths lengths_in(std::string_view bytes) {
  return bytes.size() > 1 && bytes[1] == '\0' ? Lengths::kWide : Lengths::kShort;
}

Status damaged(const char* what) {
  return Status(Code::kVersionMismatch,
                std::string("the store holds a ") + what +
                    " that this taco_torch cannot read: another rank runs another version");
}

bool same_values(const std::vector<Setting>& a, const std::vector<Setting>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Setting& x, const Setting& y) { return x.value == y.value; });
}

// Names the settings of `ours` that differ in `theirs`; all of them when one lists more than the
// other.
std::string difference(const std::vector<Setting>& ours, const std::vector<Setting>& theirs) {
  std::string text;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (ours.size() == theirs.size() && ours[i].value == theirs[i].value) continue;
    text += (text.empty() ? "" : ", ") + ours[i].name + "=" + ours[i].value;
  }
  return text;
}

// The reverse of hex_of(); nothing for other text.
std::optional<std::string> bytes_of_hex(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    unsigned char byte = 0;
    const char* const end = digits.data() + i + 2;
    const auto [stop, error] = std::from_chars(digits.data() + i, end, byte, 16);
    if (error != std::errc() || stop != end) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

int index_of_host(const std::vector<std::string>& hosts, const std::string& host) {
  return static_cast<int>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
}

}  // namespace

Hello::Hello() : format(kMagic) {}

std::string Hello::encode() const {
  Writer out;
  out.text(kMagic);
  out.text(token);
  out.text(version);
  out.count(settings.size());
  for (const Setting& setting : settings) {
    out.text(setting.name);
    out.text(setting.value);
  }
  out.text(host);
  out.text(address);
  out.count(further.size());
  for (const std::string& one : further) out.text(one);
  out.real(gbits);
  return out.take();
}

Result<Hello> Hello::decode(std::string_view bytes) {
  const Lengths lengths = lengths_in(bytes);
  Reader in(bytes, lengths);
  Hello hello;
  hello.format = in.text();
  const bool is_ours = hello.format == kMagic;
  if (!hello.format.starts_with(kAnyMagic)) return damaged("greeting");
  if (is_ours && lengths == Lengths::kWide) return damaged("greeting");
  hello.token = in.text();
  hello.version = in.text();
  if (!is_ours && in.ok()) return hello;
  const std::size_t settings = in.count();
  if (settings > kMaxSettings) return damaged("greeting");
  for (std::size_t i = 0; i < settings; ++i) {
    std::string name = in.text();
    hello.settings.push_back({std::move(name), in.text()});
  }
  hello.host = in.text();
  hello.address = in.text();
  const std::size_t further = in.count();
  for (std::size_t i = 0; i < further && in.ok(); ++i) hello.further.push_back(in.text());
  hello.gbits = in.real();
  if (!in.ok() || !in.at_end()) return damaged("greeting");
  return hello;
}

std::string Table::encode() const {
  Writer out;
  out.text(kMagic);
  out.number(group_id);
  out.text(word);
  out.number(ranks.size());
  for (Hello hello : ranks) {
    hello.settings.clear();  // rank 0 has compared them, and long tables stop (kLongText)
    out.text(hello.encode());
  }
  return out.take();
}

Result<Table> Table::decode(std::string_view bytes) {
  Reader in(bytes);
  if (in.text() != kMagic) return damaged("table of ranks");
  Table table;
  table.group_id = in.number();
  table.word = in.text();
  const std::uint64_t count = in.number();
  for (std::uint64_t i = 0; i < count && in.ok(); ++i) {
    Result<Hello> hello = Hello::decode(in.text());
    if (!hello.ok()) return hello.status();
    // It has no settings, see encode().
    if (hello->format != kMagic || !hello->settings.empty()) return damaged("table of ranks");
    table.ranks.push_back(std::move(hello).value());
  }
  if (!in.ok() || !in.at_end()) return damaged("table of ranks");
  return table;
}

std::string Refusal::encode() const {
  Writer out(Lengths::kWide);
  out.text(kRefusal);
  out.number(static_cast<std::uint64_t>(why.code()));
  out.number(static_cast<std::uint64_t>(readers));
  out.text(why.message());
  return out.take();
}

std::optional<Refusal> Refusal::decode(std::string_view bytes) {
  Reader in(bytes, Lengths::kWide);
  if (in.text() != kRefusal) return std::nullopt;
  const bool version = in.number() == static_cast<std::uint64_t>(Code::kVersionMismatch);
  Refusal refusal;
  refusal.readers = static_cast<int>(in.number());
  refusal.why = Status(version ? Code::kVersionMismatch : Code::kRendezvous,
                       (version ? "rank 0 refused: " : "rank 0 gave up: ") + in.text());
  return refusal;
}

std::string MemberHandle::encode() const {
  Writer out;
  out.text(job);
  out.text(hello.encode());
  out.text(word);
  const std::string bytes = out.take();
  return std::string(kMember) + hex_of(std::as_bytes(std::span(bytes)));
}

Result<MemberHandle> MemberHandle::decode(std::string_view text) {
  if (!text.starts_with(kAnyMember)) {
    return invalid("this is no handle of a taco group: \"" + std::string(text.substr(0, 40)) +
                   (text.size() > 40 ? "..." : "") + "\"");
  }
  if (!text.starts_with(kMember)) {
    return Status(Code::kVersionMismatch,
                  "the handle is of another version of taco_torch: it begins with " +
                      std::string(text.substr(0, text.find(':'))) + ", and here they begin with " +
                      std::string(kMember.substr(0, kMember.size() - 1)));
  }
  const std::optional<std::string> bytes = bytes_of_hex(text.substr(kMember.size()));
  Reader in(bytes ? std::string_view(*bytes) : std::string_view());
  MemberHandle handle;
  handle.job = in.text();
  const std::string hello = in.text();
  handle.word = in.text();
  if (!in.ok() || !in.at_end()) return invalid("the handle is damaged or cut off");
  Result<Hello> decoded = Hello::decode(hello);
  if (!decoded.ok()) return decoded.status();
  handle.hello = std::move(decoded).value();
  return handle;
}

std::string random_token() {
  const auto value = random_value<std::array<unsigned long long, 2>>();
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", value[0], value[1]);
  return text;
}

std::vector<int> Table::host_of_rank() const {
  std::vector<std::string> hosts;
  std::vector<int> indices;
  for (const Hello& hello : ranks) {
    const int index = index_of_host(hosts, hello.host);
    if (index == static_cast<int>(hosts.size())) hosts.push_back(hello.host);
    indices.push_back(index);
  }
  return indices;
}

std::vector<double> Table::host_gbits() const {
  const std::vector<int> indices = host_of_rank();
  std::vector<double> gbits;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::size_t host = indices[rank];
    if (host == gbits.size()) gbits.push_back(0);
    if (gbits[host] == 0) gbits[host] = ranks[rank].gbits;
  }
  return gbits;
}

Status compare(const std::string& us, const Hello& ours, const std::string& them,
               const Hello& theirs, const std::string& advice) {
  const auto differ = [&](const std::string& what, const std::string& a, const std::string& b) {
    return Status(Code::kVersionMismatch, what + " differ: " + us + " has " + a + ", " + them +
                                              " has " + b + ". " + advice);
  };
  if (ours.version != theirs.version) {
    return differ("taco_torch versions", ours.version, theirs.version);
  }
  if (ours.format != theirs.format) {  // builds of one version in the making
    return differ("builds of taco_torch " + ours.version, ours.format, theirs.format);
  }
  if (!same_values(ours.settings, theirs.settings)) {
    return differ("settings", difference(ours.settings, theirs.settings),
                  difference(theirs.settings, ours.settings));
  }
  return Status();
}

Status compare(int our_rank, const Hello& ours, int their_rank, const Hello& theirs) {
  return compare("rank " + std::to_string(our_rank), ours, "rank " + std::to_string(their_rank),
                 theirs, "All ranks need the same.");
}

Status check_distinct(const std::vector<Hello>& ranks) {
  std::map<std::string_view, int> rank_of;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const auto [known, is_new] = rank_of.emplace(ranks[rank].address, rank);
    if (is_new) continue;
    return Status(Code::kRendezvous,
                  "ranks " + std::to_string(known->second) + " and " + std::to_string(rank) +
                      " are threads of one process that call their group by different names: pass "
                      "both the same group name");
  }
  return Status();
}

std::string describe_duration(Duration duration) {
  if (duration < kSecond) return std::to_string(duration / kMillisecond) + " ms";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(duration) / kSecond);
  return text;
}

std::string list_of_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMax = 12;
  std::string text;
  const std::size_t shown = std::min(ranks.size(), kMax);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > shown) text += " and " + std::to_string(ranks.size() - shown) + " more";
  return text;
}

}  // namespace taco::edge
