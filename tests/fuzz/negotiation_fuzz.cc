// Words of a negotiation come from other processes, and before them how many bytes they have: any
// number that is no such must be refused. read_words() must survive any bytes, what it accepts must
// be what a WordsWriter makes of it again, and a negotiation that hears it, in the right round and
// behind the right digest, must come to an end or to an error; what it agrees to fits into memory.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "pg/controller/negotiation.h"
#include "pg/controller/words.h"

namespace {

using namespace taco::pg::controller;

constexpr int kWorld = 2;
constexpr std::size_t kSlots = 2;

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

void check_size(const Negotiation& own, std::int64_t bytes) {
  constexpr std::int64_t kEnough = 64 << 20;  // more than any words of two ranks
  if (own.check_sizes({1, bytes}).ok() && (bytes < 1 || bytes > kEnough)) abort();
}

// The rows that a rank gets of a tensor can be counted, and are no more than memory holds.
void check_rows(const Response& response) {
  const Request& first = response.requests.front();
  if (!response.error.ok()) return;
  const bool is_split = first.kind == Kind::kAllToAll;
  for (std::size_t list = 0; list < response.rows.size(); ++list) {
    __int128 rows = 0;
    for (std::size_t rank = 0; rank < kWorld; ++rank) {
      rows += is_split ? response.rows[rank][list] : response.rows[list][rank];
    }
    if (rows > INT64_MAX) abort();
    const auto tensor = is_split ? 0 : list;
    if (!bytes_of_rows(first, tensor, static_cast<std::int64_t>(rows))) abort();
  }
}

// The other rank says the same in each of three rounds, and this one some of it.
void play(const Words& heard, bool joins, std::int64_t bytes) {
  Negotiation own({.rank = 0, .world = kWorld, .fusion_bytes = 100, .cache_slots = kSlots});
  for (std::size_t round = 0; round < 3; ++round) {
    (void)own.submit(own_request(heard, round));
    if (joins && round == 1) (void)own.submit({.kind = Kind::kJoin});
    (void)own.bits();
    if (!own.words_follow({0})) abort();
    check_size(own, bytes);
    const std::string mine = own.words();
    const std::string theirs = write_words(heard, own.round(), own.digest());
    if (!own.check_sizes({std::ssize(mine), std::ssize(theirs)}).ok()) abort();
    if (!own.hear({mine, theirs}).ok()) return;
    for (const Response& response : own.responses()) check_rows(response);
    (void)own.waiting();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  std::int64_t said = 0;
  constexpr std::size_t kHead = 1 + sizeof said;
  if (bytes < kHead) return 0;
  std::memcpy(&said, data + 1, sizeof said);
  check_size(Negotiation({.world = kWorld, .cache_slots = kSlots}), said);
  const std::string_view text(reinterpret_cast<const char*>(data) + kHead, bytes - kHead);
  const auto read = read_words(text, kWorld);
  if (!read.ok()) return 0;
  const Words& words = read.value();
  if (text.size() < kMaxWordsBytes && write_words(words, words.round, words.digest) != text) {
    abort();
  }
  play(words, (data[0] & 1) != 0, said);
  return 0;
}
