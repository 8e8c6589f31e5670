#include "remote/message.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace taco::remote {
namespace {

constexpr std::uint8_t kRemoteFormat = 1;  // of requests and answers
enum class Type : std::uint8_t { kRequest = 1, kParting };

struct RequestRecord {
  std::uint8_t service, type, action, zero;
  std::uint32_t zeros;
  std::uint64_t endpoint, from, number, region, offset, bytes;
  Token token;
};
static_assert(sizeof(RequestRecord) == kRequestBytes);

struct AnswerRecord {
  std::uint8_t format, code;
};

// Two bits of a key say for what it is.
constexpr std::uint64_t kLastNumber = ~std::uint64_t{0} >> 2;

constexpr std::uint8_t first_byte() { return harp::notice_byte(kRemoteMemory, kRemoteFormat); }

// The codes that an owner has reason to give. kResource: too many receives were open there.
constexpr Code kAnswerCodes[] = {Code::kOk,      Code::kInvalidArgument, Code::kMismatch,
                                 Code::kAborted, Code::kResource,        Code::kInternal};

bool is_answer_code(Code code) {
  return std::ranges::find(kAnswerCodes, code) != std::end(kAnswerCodes);
}

harp::MessageKey key_of(std::uint64_t group, std::uint64_t kind, std::uint64_t number) {
  return {group, kind << 62 | (number & kLastNumber)};
}

Status no_message(const std::string& why) {
  return Status(Code::kMismatch, "a request for memory that is none: " + why);
}

}  // namespace

std::uint64_t addressee_of(const Message& message) {
  return std::visit([](const auto& which) { return which.endpoint; }, message);
}

std::size_t write_message(const Message& message, MessageBytes& out) {
  RequestRecord record{};
  record.service = first_byte();
  std::span<const std::byte> carried;
  if (const Request* request = std::get_if<Request>(&message)) {
    record.type = static_cast<std::uint8_t>(Type::kRequest);
    record.action = static_cast<std::uint8_t>(request->action);
    record.endpoint = request->endpoint;
    record.from = request->from;
    record.number = request->number;
    record.region = request->region.number;
    record.token = request->region.token;
    record.offset = request->offset;
    record.bytes = request->bytes;
    carried = request->carried;
  } else {
    const Parting& parting = std::get<Parting>(message);
    record.type = static_cast<std::uint8_t>(Type::kParting);
    record.action = static_cast<std::uint8_t>(parting.why);
    record.endpoint = parting.endpoint;
    record.from = parting.from;
  }
  std::memcpy(out.data(), &record, sizeof record);
  std::copy(carried.begin(), carried.end(), out.begin() + sizeof record);
  return sizeof record + carried.size();
}

Result<Message> read_message(std::span<const std::byte> bytes) {
  RequestRecord record;
  if (bytes.size() < sizeof record)
    return no_message("it has " + std::to_string(bytes.size()) + " bytes");
  std::memcpy(&record, bytes.data(), sizeof record);
  if (record.service != first_byte())
    return no_message("its format is " + std::to_string(record.service & 0xf));
  if (record.zero != 0 || record.zeros != 0) return no_message("it says what no request says");
  const std::span<const std::byte> carried = bytes.subspan(sizeof record);
  switch (static_cast<Type>(record.type)) {
    case Type::kRequest: {
      const Action action = static_cast<Action>(record.action);
      if (action != Action::kWrite && action != Action::kRead)
        return no_message("its action is " + std::to_string(record.action));
      if (record.bytes == 0 || record.bytes > harp::kMaxMessageBytes)
        return no_message("it is for " + std::to_string(record.bytes) + " bytes");
      if (record.number > kLastNumber)
        return no_message("its number is " + std::to_string(record.number));
      const bool brings = !carried.empty();
      if (brings && (action == Action::kRead || carried.size() != record.bytes)) {
        return no_message("it brings " + std::to_string(carried.size()) + " bytes of " +
                          std::to_string(record.bytes));
      }
      return Message(Request{.endpoint = record.endpoint,
                             .from = record.from,
                             .number = record.number,
                             .action = action,
                             .region = {record.region, record.token},
                             .offset = record.offset,
                             .bytes = record.bytes,
                             .carried = carried});
    }
    case Type::kParting: {
      const Parting::Why why = static_cast<Parting::Why>(record.action);
      const bool is_known = why == Parting::Why::kClosed || why == Parting::Why::kOthers ||
                            why == Parting::Why::kCrowded;
      if (!carried.empty() || record.bytes != 0 || !is_known)
        return no_message("it is an end that says why in no known way");
      return Message(Parting{record.endpoint, record.from, why});
    }
  }
  return no_message("its type is " + std::to_string(record.type));
}

std::size_t write_answer(const Status& answer, AnswerBytes& out) {
  const Code code = is_answer_code(answer.code()) ? answer.code() : Code::kInternal;
  const AnswerRecord record{kRemoteFormat, static_cast<std::uint8_t>(code)};
  const std::string& text = answer.message();
  const std::size_t length = std::min(text.size(), out.size() - sizeof record);
  std::memcpy(out.data(), &record, sizeof record);
  std::memcpy(out.data() + sizeof record, text.data(), length);
  return sizeof record + length;
}

Status read_answer(std::span<const std::byte> bytes) {
  AnswerRecord record{};
  if (bytes.size() >= sizeof record) std::memcpy(&record, bytes.data(), sizeof record);
  const Code code = static_cast<Code>(record.code);
  const std::span<const std::byte> text = bytes.subspan(std::min(bytes.size(), sizeof record));
  if (record.format != kRemoteFormat || !is_answer_code(code) ||
      (code == Code::kOk && !text.empty())) {
    return Status(Code::kMismatch,
                  "an answer of " + std::to_string(bytes.size()) +
                      " bytes that is none: the peer does not keep to the protocol");
  }
  if (code == Code::kOk) return {};
  return Status(code, std::string(reinterpret_cast<const char*>(text.data()), text.size()));
}

harp::MessageKey key_of_written(std::uint64_t owner, std::uint64_t number) {
  return key_of(owner, 1, number);
}
harp::MessageKey key_of_read(std::uint64_t requester, std::uint64_t number) {
  return key_of(requester, 2, number);
}
harp::MessageKey key_of_answer(std::uint64_t requester, std::uint64_t number) {
  return key_of(requester, 3, number);
}

std::uint64_t signature_of_transfer(std::uint64_t bytes) {
  return std::uint64_t{kRemoteFormat} << 56 | bytes;
}
std::uint64_t signature_of_answer() { return std::uint64_t{kRemoteFormat} << 56; }

}  // namespace taco::remote
