// An open-addressing hash table from MessageKey to a small trivially copyable entry, for the
// Matcher: linear probing, backward-shift deletion, no allocation unless it grows, nothing at all
// while empty and never used. References are valid until the next insertion, removal or trim().
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "harp/transport.h"

namespace taco::harp {

inline std::uint64_t hash_of(const MessageKey& key) {
  std::uint64_t h = (key.group ^ (key.tag * 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
  return h ^ (h >> 32);
}

// Entry has a member `MessageKey key` and a method `bool empty() const`; a default Entry is empty.
template <class Entry>
class KeyTable {
 public:
  std::size_t size() const { return size_; }

  Entry* find(const MessageKey& key) {
    if (size_ == 0) return nullptr;
    for (std::size_t i = hash_of(key) & mask_;; i = (i + 1) & mask_) {
      if (entries_[i].empty()) return nullptr;
      if (entries_[i].key == key) return &entries_[i];
    }
  }
  const Entry* find(const MessageKey& key) const { return const_cast<KeyTable*>(this)->find(key); }

  // The key must be absent. The entry returned has its key set and must be filled so that it is no
  // longer empty before the table is used again.
  Entry& insert(const MessageKey& key) {
    if (4 * (size_ + 1) > 3 * capacity()) grow();
    ++size_;
    Entry& entry = place_for(key);
    entry.key = key;
    return entry;
  }

  void erase(Entry& entry) {
    std::size_t hole = static_cast<std::size_t>(&entry - entries_.get());
    for (std::size_t i = (hole + 1) & mask_; !entries_[i].empty(); i = (i + 1) & mask_) {
      const std::size_t home = hash_of(entries_[i].key) & mask_;
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        entries_[hole] = entries_[i];
        hole = i;
      }
    }
    entries_[hole] = Entry();
    --size_;
  }

  template <class Visit>
  void for_each(Visit&& visit) {
    for (std::size_t i = 0; i < capacity(); ++i) {
      if (!entries_[i].empty()) visit(entries_[i]);
    }
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    const_cast<KeyTable*>(this)->for_each([&](const Entry& entry) { visit(entry); });
  }
  // One that is large may give memory back.
  bool is_large() const { return capacity() > kSmall; }
  // Gives back what a busier time has taken, if little of it is in use.
  void trim() {
    if (!is_large() || 4 * size_ >= capacity()) return;
    if (size_ == 0) return clear();
    resize(std::max(kFirst, std::bit_ceil(2 * size_)));
  }
  std::size_t capacity() const { return mask_ + 1; }
  void clear() {
    entries_.reset();
    size_ = 0;
    mask_ = SIZE_MAX;
  }

 private:
  static constexpr std::size_t kFirst = 4, kSmall = 16;

  Entry& place_for(const MessageKey& key) {
    std::size_t i = hash_of(key) & mask_;
    while (!entries_[i].empty()) i = (i + 1) & mask_;
    return entries_[i];
  }
  void grow() { resize(capacity() == 0 ? kFirst : 2 * capacity()); }
  void resize(std::size_t to) {
    const std::size_t old_capacity = capacity();
    std::unique_ptr<Entry[]> old = std::exchange(entries_, std::make_unique<Entry[]>(to));
    mask_ = to - 1;
    for (std::size_t i = 0; i < old_capacity; ++i) {
      if (!old[i].empty()) place_for(old[i].key) = old[i];
    }
  }

  std::unique_ptr<Entry[]> entries_;
  std::size_t size_ = 0;
  std::size_t mask_ = SIZE_MAX;  // capacity - 1; no capacity at first
};

}  // namespace taco::harp
