// Words of a negotiation come from other processes: read_words() must survive any bytes, what it
// accepts must be what a WordsWriter makes of it again, and a negotiation that hears it, in the
// right round and behind the right digest, must come to an end or to an error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "pg/controller/negotiation.h"
#include "pg/controller/words.h"

namespace {

using namespace taco::pg::controller;

constexpr int kWorld = 2;

std::string write_words(const Words& words, std::uint64_t round, std::uint64_t digest) {
  WordsWriter writer(round, digest);
  for (const Request& request : words.requests) {
    if (!writer.add(request)) break;
  }
  for (const std::uint32_t slot : words.waiting_slots) writer.add_waiting(slot);
  return writer.take();
}

Request own_request(const Words& heard, std::size_t which) {
  if (which < heard.requests.size()) return heard.requests[which];
  Request request;
  request.name = std::to_string(which);
  return request;
}

// The other rank says the same in each of three rounds, and this one some of it.
void play(const Words& heard, bool joins) {
  Negotiation own({.rank = 0, .world = kWorld, .fusion_bytes = 100, .cache_slots = 2});
  for (std::size_t round = 0; round < 3; ++round) {
    (void)own.submit(own_request(heard, round));
    if (joins && round == 1) (void)own.submit({.kind = Kind::kJoin});
    (void)own.bits();
    if (!own.words_follow({0})) abort();
    const std::string mine = own.words();
    const std::string theirs = write_words(heard, own.round(), own.digest());
    if (!own.hear({mine, theirs}).ok()) return;
    (void)own.responses();
    (void)own.waiting();
  }
  (void)own.abandon();
  if (own.wants_round()) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  const auto read = read_words(text, kWorld);
  if (!read.ok()) return 0;
  const Words& words = read.value();
  if (text.size() < kMaxWordsBytes && write_words(words, words.round, words.digest) != text) {
    abort();
  }
  play(words, (data[0] & 1) != 0);
  return 0;
}
