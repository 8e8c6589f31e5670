// The paths of one session, by their ids. The first is there from the beginning and for good; the
// side that leads opens the others, and its peer learns of one by the first challenge that comes by
// it. What is small goes by the main path; segments go by whichever brings them soonest.
//
// Owner thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "harp/session/path.h"

namespace taco::harp {

class PathSet {
 public:
  static constexpr std::size_t kMaxPaths = 16;

  explicit PathSet(std::unique_ptr<Path> first) { paths_.push_back(std::move(first)); }

  Path& first() { return *paths_.front(); }
  const Path& first() const { return *paths_.front(); }
  // The first of those that are live; the first of all, if none is.
  Path& main() { return *paths_[main_]; }
  const Path& main() const { return *paths_[main_]; }
  std::size_t count() const { return paths_.size(); }
  std::size_t live() const;
  // No two that are live run between the same two addresses, as they may while the peer moves them.
  bool are_apart() const;
  // Null: there is no such path.
  Path* find(wire::PathId id);
  const Path* find(wire::PathId id) const { return const_cast<PathSet*>(this)->find(id); }
  Path& add(std::unique_ptr<Path> path);
  auto begin() const { return paths_.begin(); }
  auto end() const { return paths_.end(); }

  // Acknowledgements of these paths (bit i: the i-th) have left by another.
  void on_acks_sent(std::uint32_t which);

  // After a path has come or gone.
  void choose_main();
  // Some other path than this one is live; and has been heard since.
  bool has_other(const Path& than) const;
  bool is_heard_since(Time when, const Path& than) const;

  // The other live paths to the same address, by other ports, which share this one's link at least.
  Path::Others beside(const Path& path) const;

  // The largest datagram that all can be relied on to carry.
  std::size_t datagram() const;
  // The path by which a packet would arrive first, among the live ones that are not in `tried` (bit
  // i: the i-th). Null: none.
  Path* soonest(std::uint32_t tried, std::uint32_t* index);

  // Packet numbers that the peer has used and that need no more credit, over all paths.
  std::uint64_t received() const;
  // The peer says that nothing up to this number is under way there any more.
  void close_up_to(wire::PathId id, std::uint64_t last);

  std::size_t memory_bytes() const;
  void prefetch_places() const { __builtin_prefetch(paths_.data()); }

 private:
  std::vector<std::unique_ptr<Path>> paths_;
  std::vector<std::uint64_t> closed_up_to_;  // by id; only as long as needed
  std::size_t main_ = 0;
};

}  // namespace taco::harp
