#include "zerocache/ranks/agreement.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace taco::zerocache {
namespace {

// A rank's own status, as it is sent. Longer messages are cut off.
struct Verdict {
  std::uint32_t code = 0;  // of Code; 0: all is well
  std::uint32_t length = 0;
  char message[1016] = {};
};
static_assert(sizeof(Verdict) == 1024);

}  // namespace

Status all_gather(Collectives& ranks, std::span<const std::byte> own, std::span<std::byte> all) {
  auto work = ranks.all_gather(own, all);
  if (!work.ok()) return work.status();
  return (*work)->wait();
}

Status agree(Collectives& ranks, const Status& own) {
  Verdict verdict;
  verdict.code = static_cast<std::uint32_t>(own.code());
  verdict.length =
      static_cast<std::uint32_t>(std::min(own.message().size(), sizeof(verdict.message)));
  std::memcpy(verdict.message, own.message().data(), verdict.length);
  auto all = gather_values(ranks, verdict);
  if (!own.ok()) return own;
  TACO_RETURN_IF_ERROR(all.status());
  const auto failed =
      std::find_if(all->begin(), all->end(), [](const Verdict& each) { return each.code != 0; });
  if (failed == all->end()) return {};
  const std::size_t length = std::min<std::size_t>(failed->length, sizeof(failed->message));
  return Status(static_cast<Code>(failed->code), "rank " + std::to_string(failed - all->begin()) +
                                                     ": " + std::string(failed->message, length));
}

Result<std::vector<std::vector<std::byte>>> gather(Collectives& ranks,
                                                   std::span<const std::byte> own) {
  const auto size = static_cast<std::size_t>(ranks.size());
  auto lengths = gather_values(ranks, std::uint64_t{own.size()});
  TACO_RETURN_IF_ERROR(lengths.status());
  const std::size_t most = *std::max_element(lengths->begin(), lengths->end());
  std::vector<std::vector<std::byte>> found(size);
  if (most == 0) return found;
  std::vector<std::byte> padded(most), all(most * size);
  std::copy(own.begin(), own.end(), padded.begin());
  TACO_RETURN_IF_ERROR(all_gather(ranks, padded, all));
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::span<const std::byte> given = std::span(all).subspan(rank * most, (*lengths)[rank]);
    found[rank].assign(given.begin(), given.end());
  }
  return found;
}

}  // namespace taco::zerocache
