#include "harp/stat/stat_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/descriptors.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace taco::harp::statistics {
namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr Duration kReadTime = 200 * kMillisecond;

constexpr char kWhat[] = "the page of statistics: ";

Status stat_failure(const char* what) {
  return Status(Code::kResource,
                std::string(kWhat) + what + " failed: " + system_error_text(errno));
}

// A store after the sequence has become odd is seen only with that, and the sequence is even again
// only after all of them: every store is a release, and every load an acquire.
void store_words(std::atomic<std::uint64_t>* to, const void* from, std::size_t bytes) {
  const auto* source = static_cast<const std::byte*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(std::uint64_t); ++i) {
    std::uint64_t word;
    std::memcpy(&word, source + i * sizeof word, sizeof word);
    if (to[i].load(std::memory_order_relaxed) == word) continue;
    to[i].store(word, std::memory_order_release);
  }
}

void load_words(const std::atomic<std::uint64_t>* from, void* to, std::size_t bytes) {
  auto* destination = static_cast<std::byte*>(to);
  for (std::size_t i = 0; i < bytes / sizeof(std::uint64_t); ++i) {
    const std::uint64_t word = from[i].load(std::memory_order_acquire);
    std::memcpy(destination + i * sizeof word, &word, sizeof word);
  }
}

std::atomic<std::uint64_t>* words_at(const Mapping& mapping, std::size_t offset) {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(mapping.data() + offset);
}

// Linux before 5.1 knows no seal against writers to come; the mode of the file stands in their way
// all the same, unless they are root's.
bool seal(int fd) {
  constexpr int kForGood = kFixedSize | F_SEAL_SEAL;
  return fcntl(fd, F_ADD_SEALS, kForGood | F_SEAL_FUTURE_WRITE) == 0 ||
         fcntl(fd, F_ADD_SEALS, kForGood) == 0;
}

}  // namespace

Result<std::unique_ptr<Page>> Page::create(const About& about) {
  OwnFd memory(memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return stat_failure("memfd_create");
  if (fchmod(memory.get(), 0400) != 0) return stat_failure("fchmod");
  if (ftruncate(memory.get(), kPageBytes) != 0) return stat_failure("ftruncate");
  auto mapping = Mapping::of_file(memory.get(), kPageBytes, Mapping::Access::kReadWrite);
  if (!mapping.ok()) return mapping.status().with_prefix(kWhat);
  // The magic comes last: who looks earlier finds no page.
  About blank = about;
  blank.magic = {};
  store_words(words_at(*mapping, 0), &blank, sizeof blank);
  store_words(words_at(*mapping, 0), &about, sizeof about.magic);
  if (!seal(memory.get())) return stat_failure("sealing it");
  return std::unique_ptr<Page>(new Page(std::move(memory), std::move(mapping).value()));
}

void Page::publish(const State& state) {
  Totals totals = state.totals;
  totals.rows = std::min(state.rows.size(), kMaxRows);
  totals.rows_left_out += state.rows.size() - totals.rows;
  std::atomic<std::uint64_t>& sequence = *words_at(mapping_, kSequenceAt);
  sequence.store(++sequence_, std::memory_order_relaxed);
  store_words(words_at(mapping_, kTotalsAt), &totals, sizeof totals);
  store_words(words_at(mapping_, kRowsAt), state.rows.data(), totals.rows * sizeof(Row));
  sequence.store(++sequence_, std::memory_order_release);
}

Result<View> View::open(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return stat_failure("fstat");
  const int seals = fcntl(fd, F_GET_SEALS);
  // Unsealed memory may shrink under a reader, who would die of it.
  if (seals < 0 || (seals & kFixedSize) != kFixedSize || file.st_size < long{sizeof(About)}) {
    return Status(Code::kInvalidArgument, "is no page of HARP's statistics");
  }
  const auto bytes = std::min<std::size_t>(static_cast<std::size_t>(file.st_size), kPageBytes);
  auto mapping = Mapping::of_file(fd, bytes, Mapping::Access::kRead);
  if (!mapping.ok()) return mapping.status().with_prefix(kWhat);
  About about;
  load_words(words_at(*mapping, 0), &about, sizeof about);
  if (about.magic != kMagic) {
    return Status(Code::kInvalidArgument, "is no page of HARP's statistics");
  }
  if (about.version != kVersion) {
    return Status(Code::kVersionMismatch,
                  "has statistics of layout " + std::to_string(about.version) +
                      ", and this harp-stat reads layout " + std::to_string(kVersion) +
                      ": use the harp-stat of the taco_torch that it runs");
  }
  if (bytes != kPageBytes) {
    return Status(Code::kInvalidArgument, "has a damaged page of HARP's statistics");
  }
  return View(about, std::move(mapping).value());
}

Result<State> View::read() const {
  State state;
  const std::atomic<std::uint64_t>& sequence = *words_at(mapping_, kSequenceAt);
  const Time limit = monotonic_now() + kReadTime;
  do {
    const std::uint64_t before = sequence.load(std::memory_order_acquire);
    if (before % 2 == 0) {
      load_words(words_at(mapping_, kTotalsAt), &state.totals, sizeof state.totals);
      state.rows.resize(std::min<std::size_t>(state.totals.rows, kMaxRows));
      load_words(words_at(mapping_, kRowsAt), state.rows.data(), state.rows.size() * sizeof(Row));
      if (sequence.load(std::memory_order_relaxed) == before) return state;
    }
    sched_yield();
  } while (monotonic_now() < limit);
  return Status(Code::kTimeout,
                "was writing its statistics at every look: is it stopped (kill -CONT resumes it)?");
}

}  // namespace taco::harp::statistics
