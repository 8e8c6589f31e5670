// The words of a round: requests that a rank tells the others in full, since they know no number
// for them. Words come from other processes: read_words() checks their form, and each request as
// check_request() does. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "pg/controller/request.h"

namespace taco::pg::controller {

inline constexpr std::size_t kMaxWordsBytes = 1 << 20;  // a rank and round; the rest waits

struct Words {
  std::uint64_t round = 0;
  std::uint64_t digest = 0;  // of the sender's tables before this round
  std::vector<Request> requests;
  std::vector<std::uint32_t> waiting_slots;  // where that was asked: what waits without words
};

class WordsWriter {
 public:
  WordsWriter(std::uint64_t round, std::uint64_t digest);
  // False: there is no more room. The first request always has some.
  bool add(const Request& request);
  void add_waiting(std::uint32_t slot);
  std::string take();

 private:
  std::string bytes_;
  bool has_request_ = false;
};

// The most that a WordsWriter makes, of one request as large as any or of several, and of the slots
// of a cache.
std::size_t most_words_bytes(int world, std::size_t cache_slots);

// kInternal for anything that no WordsWriter makes, and for requests that are impossible in a set
// of `world` ranks.
Result<Words> read_words(std::string_view bytes, int world);

}  // namespace taco::pg::controller
