// Both sides of the page that layout.h describes: a Page is written by one engine, a View is what
// another process reads of it.
//
// The page is a memfd that is sealed: it never changes its size, so reading it cannot fault, and
// where the kernel can say so nobody but its maker ever maps it for writing. Forked children have
// neither the descriptor nor the mapping.
#pragma once

#include <string.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "base/names.h"
#include "base/own_fd.h"
#include "base/status.h"
#include "harp/stat/layout.h"

namespace taco::harp::statistics {

// The part of the page that changes. Rows beyond kMaxRows are counted in totals.rows_left_out;
// totals.rows is the page's own.
struct State {
  Totals totals;
  std::vector<Row> rows;
};

template <std::size_t kBytes>
void set_text(Text<kBytes>& text, std::string_view value) {
  const std::size_t bytes = value.copy(text.data(), kBytes - 1);
  text[bytes] = '\0';
}

// Anybody may have written it.
template <std::size_t kBytes>
std::string text_of(const Text<kBytes>& text) {
  return printable({text.data(), strnlen(text.data(), kBytes)});
}

// One thread at a time.
class Page {
 public:
  // Visible to others from here on, with nothing but `about`.
  static Result<std::unique_ptr<Page>> create(const About& about);

  // Writes the words that have changed, and no others. No system call, no allocation.
  void publish(const State& state);

  int fd() const { return memory_.get(); }

 private:
  Page(OwnFd memory, Mapping mapping) : memory_(std::move(memory)), mapping_(std::move(mapping)) {}

  const OwnFd memory_;
  const Mapping mapping_;
  std::uint64_t sequence_ = 0;
};

// Any thread. Whatever is on the page, reading it is safe: another process wrote it.
class View {
 public:
  // Keeps nothing of `fd`. kVersionMismatch names both versions; kInvalidArgument: no such page.
  static Result<View> open(int fd);

  const About& about() const { return about_; }
  // As it stood at one moment. kTimeout: it was being written all the time, as by a process that
  // was stopped in the middle.
  Result<State> read() const;

 private:
  View(const About& about, Mapping mapping) : about_(about), mapping_(std::move(mapping)) {}

  About about_;
  Mapping mapping_;
};

}  // namespace taco::harp::statistics
