#include "pg/codecs/coding_stats.h"

#include <atomic>

namespace taco::pg {
namespace {

// Nothing else is published through these: relaxed is enough.
struct Counter {
  std::atomic<std::uint64_t> value{0};
  void add(std::uint64_t amount) { value.fetch_add(amount, std::memory_order_relaxed); }
  std::uint64_t get() const { return value.load(std::memory_order_relaxed); }
  double seconds() const { return static_cast<double>(get()) / kSecond; }
};

Counter blocks_encoded, blocks_decoded, bytes_before, bytes_after, encode_ns, decode_ns;

}  // namespace

CodingStats coding_stats() {
  return {.blocks_encoded = blocks_encoded.get(),
          .blocks_decoded = blocks_decoded.get(),
          .bytes_before = bytes_before.get(),
          .bytes_after = bytes_after.get(),
          .encode_seconds = encode_ns.seconds(),
          .decode_seconds = decode_ns.seconds()};
}

void count_encoding(Duration spent) { encode_ns.add(static_cast<std::uint64_t>(spent)); }
void count_decoding(Duration spent) { decode_ns.add(static_cast<std::uint64_t>(spent)); }

void count_encoded(std::uint64_t before, std::uint64_t after) {
  blocks_encoded.add(1);
  bytes_before.add(before);
  bytes_after.add(after);
}

void count_decoded() { blocks_decoded.add(1); }

}  // namespace taco::pg
