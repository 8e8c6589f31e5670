#include "harp/api/handshake.h"

#include <cstring>

namespace harp {
namespace {

constexpr std::size_t kHead = 1 + sizeof(Answer::channel);

}  // namespace

std::string framed(const std::string& sealed) {
  const auto length = static_cast<NoteLength>(sealed.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + sealed;
}

std::string encode(const Call& call) {
  return std::string(reinterpret_cast<const char*>(&call.number), sizeof call.number) +
         call.address;
}

std::optional<Call> decode_call(std::string_view note) {
  Call call;
  if (note.size() < sizeof call.number) return std::nullopt;
  std::memcpy(&call.number, note.data(), sizeof call.number);
  call.address = note.substr(sizeof call.number);
  return call;
}

std::string encode(const Answer& answer) {
  std::string note(kHead, '\0');
  note[0] = answer.accepted ? 1 : 0;
  std::memcpy(note.data() + 1, &answer.channel, sizeof answer.channel);
  return note + answer.text;
}

Result<Answer> decode_answer(std::string_view note) {
  if (note.size() < kHead) return Status(Code::kRendezvous, "the listener's answer is cut short");
  Answer answer;
  answer.accepted = note[0] != 0;
  std::memcpy(&answer.channel, note.data() + 1, sizeof answer.channel);
  answer.text = note.substr(kHead);
  if (!answer.accepted) return Status(Code::kRendezvous, "the listener refuses: " + answer.text);
  return answer;
}

}  // namespace harp
