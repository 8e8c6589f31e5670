#include "pg/controller/words.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace taco::pg::controller {
namespace {

// Words are this byte, the round, the digest, and items: a tag and what follows it. Numbers take
// seven bits a byte, lowest first, the last one without the eighth; those that may be negative are
// folded, so that small ones are short. Factors are there only where one is not 1.
constexpr char kWordsFormat = 1;
constexpr std::uint8_t kRequestItem = 1, kScaledRequestItem = 2, kWaitingSlotItem = 3;

std::uint64_t fold_sign(std::int64_t value) {
  return static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63);
}
std::int64_t unfold_sign(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1 ^ (~(value & 1) + 1));
}

void append_number(std::string& bytes, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  bytes += static_cast<char>(value);
}

void append_numbers(std::string& bytes, const std::vector<std::int64_t>& numbers) {
  append_number(bytes, numbers.size());
  for (const std::int64_t number : numbers) append_number(bytes, fold_sign(number));
}

void append_real(std::string& bytes, double value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_request(std::string& bytes, const Request& request) {
  const bool is_scaled = request.prescale != 1.0 || request.postscale != 1.0;
  bytes += static_cast<char>(is_scaled ? kScaledRequestItem : kRequestItem);
  bytes += static_cast<char>(request.kind);
  bytes += static_cast<char>(request.dtype);
  bytes += static_cast<char>(request.op);
  append_number(bytes, fold_sign(request.root));
  if (is_scaled) {
    append_real(bytes, request.prescale);
    append_real(bytes, request.postscale);
  }
  append_number(bytes, request.name.size());
  bytes += request.name;
  append_number(bytes, request.shapes.size());
  for (const Shape& shape : request.shapes) append_numbers(bytes, shape);
  append_numbers(bytes, request.splits);
  append_numbers(bytes, request.ranks);
}

// Reads past the end, and numbers of another form, give zeros and clear ok().
class WordsReader {
 public:
  explicit WordsReader(std::string_view bytes) : left_(bytes) {}
  bool ok() const { return ok_; }
  bool at_end() const { return left_.empty(); }

  std::uint8_t byte() {
    if (left_.empty()) return fail();
    const auto value = static_cast<std::uint8_t>(left_.front());
    left_.remove_prefix(1);
    return value;
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      const std::uint64_t bits = next & 0x7F;
      if (shift == 63 && bits > 1) return fail();
      value |= bits << shift;
      if ((next & 0x80) != 0) continue;
      // One number has one form.
      return next == 0 && shift > 0 ? fail() : value;
    }
    return fail();
  }
  std::int64_t signed_number() { return unfold_sign(number()); }
  // How many things follow that take a byte each at least: never more than there are bytes.
  std::size_t count(std::size_t most) {
    const std::uint64_t value = number();
    return value > most || value > left_.size() ? fail() : static_cast<std::size_t>(value);
  }
  std::vector<std::int64_t> numbers(std::size_t most) {
    std::vector<std::int64_t> all(count(most));
    for (std::int64_t& each : all) each = signed_number();
    return all;
  }
  double real() {
    double value = 0;
    if (left_.size() < sizeof value) return fail();
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::string text(std::size_t most) {
    const std::size_t bytes = count(most);
    std::string value(left_.substr(0, bytes));
    left_.remove_prefix(bytes);
    return value;
  }
  std::uint8_t fail() {
    ok_ = false;
    left_ = {};
    return 0;
  }

 private:
  std::string_view left_;
  bool ok_ = true;
};

Request read_request(WordsReader& reader, bool is_scaled, int world) {
  Request request;
  const std::uint8_t kind = reader.byte(), dtype = reader.byte(), op = reader.byte();
  if (kind >= kKinds || dtype >= kernels::kDtypes || op >= kernels::kReduceOps) reader.fail();
  if (!reader.ok()) return request;
  request.kind = static_cast<Kind>(kind);
  request.dtype = static_cast<kernels::Dtype>(dtype);
  request.op = static_cast<kernels::ReduceOp>(op);
  const std::int64_t root = reader.signed_number();
  request.root = static_cast<int>(root);
  if (request.root != root) reader.fail();
  if (is_scaled) {
    request.prescale = reader.real();
    request.postscale = reader.real();
    if (request.prescale == 1.0 && request.postscale == 1.0) reader.fail();
  }
  request.name = reader.text(kMaxNameBytes);
  request.shapes.resize(reader.count(kMaxTensors));
  for (Shape& shape : request.shapes) shape = reader.numbers(kMaxDimensions);
  const auto ranks = static_cast<std::size_t>(std::max(world, 0));
  request.splits = reader.numbers(ranks);
  request.ranks = reader.numbers(ranks);
  return request;
}

Status no_words(const std::string& why) {
  return Status(Code::kInternal, "a rank's words in a negotiation are none: " + why);
}

}  // namespace

std::size_t most_words_bytes(int world, std::size_t cache_slots) {
  constexpr std::size_t kNumber = 10, kReal = sizeof(double), kSlot = 1 + 5;
  constexpr std::size_t kHead = 1 + 2 * kNumber;
  constexpr std::size_t kShapes = kNumber + kMaxTensors * (1 + kMaxDimensions) * kNumber;
  const std::size_t lists = 2 * (1 + static_cast<std::size_t>(std::max(world, 0))) * kNumber;
  const std::size_t request = 4 + kNumber + 2 * kReal + kNumber + kMaxNameBytes + kShapes + lists;
  const std::size_t slots = std::min<std::size_t>(cache_slots, UINT32_MAX) * kSlot;
  return kHead + std::max(kMaxWordsBytes, request) + slots;
}

WordsWriter::WordsWriter(std::uint64_t round, std::uint64_t digest) {
  bytes_ += kWordsFormat;
  append_number(bytes_, round);
  append_number(bytes_, digest);
}

bool WordsWriter::add(const Request& request) {
  const std::size_t before = bytes_.size();
  append_request(bytes_, request);
  if (has_request_ && bytes_.size() > kMaxWordsBytes) {
    bytes_.resize(before);
    return false;
  }
  has_request_ = true;
  return true;
}

void WordsWriter::add_waiting(std::uint32_t slot) {
  bytes_ += static_cast<char>(kWaitingSlotItem);
  append_number(bytes_, slot);
}

std::string WordsWriter::take() { return std::move(bytes_); }

Result<Words> read_words(std::string_view bytes, int world) {
  WordsReader reader(bytes);
  if (reader.byte() != kWordsFormat) return no_words("their format is another");
  Words words;
  words.round = reader.number();
  words.digest = reader.number();
  while (reader.ok() && !reader.at_end()) {
    const std::uint8_t item = reader.byte();
    if (item == kWaitingSlotItem) {
      const std::uint64_t slot = reader.number();
      if (slot > UINT32_MAX) return no_words("there is no slot " + std::to_string(slot));
      words.waiting_slots.push_back(static_cast<std::uint32_t>(slot));
      continue;
    }
    if (item != kRequestItem && item != kScaledRequestItem) {
      return no_words("unknown item " + std::to_string(item));
    }
    if (!words.waiting_slots.empty()) return no_words("a request stands behind slots");
    words.requests.push_back(read_request(reader, item == kScaledRequestItem, world));
    if (!reader.ok()) break;
    if (const Status status = check_request(words.requests.back(), world); !status.ok()) {
      return no_words(status.message());
    }
  }
  if (!reader.ok()) return no_words("they end too early, or a number is out of range");
  return words;
}

}  // namespace taco::pg::controller
