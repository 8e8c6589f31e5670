// A doubly linked list of objects that carry their own links, so that nothing is allocated and an
// object that is at hand leaves its list at once. The list owns nothing, and an object may neither
// move nor end its life while it is in one. The list itself may move.
//
//   struct Task { Links<Task> links; };
//   List<Task, &Task::links> tasks;
//
// The owner of a list says which thread may use it.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>

#include "base/assert.h"

namespace taco {

template <class T>
struct Links {
  T* next = nullptr;
  T* previous = nullptr;
  bool linked = false;
};

template <class T, Links<T> T::*kLinks>
class List {
 public:
  List() = default;
  List(List&& other) noexcept { *this = std::move(other); }
  List& operator=(List&& other) noexcept {
    first_ = std::exchange(other.first_, nullptr);
    last_ = std::exchange(other.last_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  bool empty() const { return first_ == nullptr; }
  std::size_t size() const { return size_; }
  T* front() const { return first_; }  // null when empty, as back() is
  T* back() const { return last_; }
  static T* next(const T& item) { return (item.*kLinks).next; }
  static T* previous(const T& item) { return (item.*kLinks).previous; }
  // Whether the item is in this list, or in another one that uses the same links.
  static bool is_linked(const T& item) { return (item.*kLinks).linked; }

  void push_back(T& item) { insert_after(last_, item); }
  void push_front(T& item) { insert_after(nullptr, item); }
  // Null: at the front.
  void insert_after(T* position, T& item) {
    Links<T>& links = item.*kLinks;
    TACO_ASSERT(!links.linked, "it is in a list already");
    links.linked = true;
    links.previous = position;
    links.next = position == nullptr ? first_ : (position->*kLinks).next;
    place_before(item) = &item;
    place_after(item) = &item;
    ++size_;
  }
  void erase(T& item) {
    Links<T>& links = item.*kLinks;
    TACO_ASSERT(links.linked && size_ > 0);
    TACO_ASSERT(place_before(item) == &item && place_after(item) == &item, "it is in another list");
    place_before(item) = links.next;
    place_after(item) = links.previous;
    links = {};
    --size_;
    TACO_ASSERT((size_ == 0) == (first_ == nullptr) && (size_ == 0) == (last_ == nullptr));
  }
  // Null when empty.
  T* pop_front() {
    T* const item = first_;
    if (item != nullptr) erase(*item);
    return item;
  }

  // In a loop the current object may be erased, and others appended.
  template <class U>
  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = U;
    Iterator() = default;
    explicit Iterator(U* item) : item_(item), next_(after(item)) {}
    U& operator*() const { return *item_; }
    U* operator->() const { return item_; }
    Iterator& operator++() {
      item_ = next_;
      next_ = after(item_);
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const { return item_ == other.item_; }

   private:
    static U* after(U* item) { return item == nullptr ? nullptr : (item->*kLinks).next; }
    U* item_ = nullptr;
    U* next_ = nullptr;
  };
  Iterator<T> begin() { return Iterator<T>(first_); }
  Iterator<T> end() { return Iterator<T>(); }
  Iterator<const T> begin() const { return Iterator<const T>(first_); }
  Iterator<const T> end() const { return Iterator<const T>(); }

 private:
  // The pointers that lead, or are to lead, to an object whose own links are set.
  T*& place_before(T& item) {
    T* const before = (item.*kLinks).previous;
    return before == nullptr ? first_ : (before->*kLinks).next;
  }
  T*& place_after(T& item) {
    T* const after = (item.*kLinks).next;
    return after == nullptr ? last_ : (after->*kLinks).previous;
  }

  T* first_ = nullptr;
  T* last_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace taco
