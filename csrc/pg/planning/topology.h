// The topology of a group: which ranks share a host, and how fast each host's network interfaces
// are. The same on every rank of a group; immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace taco::pg {

class Topology {
 public:
  // `host_of_rank` holds dense host indices; `host_gbits` may be empty or hold 0: not known.
  static Result<Topology> make(std::vector<int> host_of_rank, std::vector<double> host_gbits);
  static Topology one_host(int world);
  static Topology uniform(int hosts, int ranks_per_host, double gbits);

  int world() const { return static_cast<int>(host_of_rank_.size()); }
  int hosts() const { return static_cast<int>(ranks_of_host_.size()); }
  int host_of(int rank) const { return host_of_rank_[rank]; }
  const std::vector<int>& ranks_of(int host) const { return ranks_of_host_[host]; }  // ascending
  int local_index_of(int rank) const { return local_index_[rank]; }  // in ranks_of(host_of(rank))
  bool same_host(int a, int b) const { return host_of_rank_[a] == host_of_rank_[b]; }
  double gbits_of(int host) const { return host_gbits_[host]; }  // 0: not known

  int min_ranks_per_host() const { return min_ranks_; }
  int max_ranks_per_host() const { return max_ranks_; }
  double min_gbits() const { return min_gbits_; }  // over hosts with a known speed; 0: none

  // Groups of ranks that algorithms treat as if each were a host: two-dimensional ones send coded
  // or reduced shards between them, and everything inside them. The hosts, unless grouped() says
  // else.
  const Topology& groups() const { return groups_ ? *groups_ : *this; }
  // The same, with groups of `size` ranks that follow each other in host_order(). kInvalidArgument
  // where `size` does not divide the world.
  Result<Topology> grouped(int size) const;

  // Ranks host by host: a ring in this order enters and leaves each host once.
  const std::vector<int>& host_order() const { return host_order_; }
  int position_of(int rank) const { return position_[rank]; }  // in host_order()

 private:
  std::vector<int> host_of_rank_;
  std::vector<double> host_gbits_;
  std::vector<std::vector<int>> ranks_of_host_;
  std::vector<int> local_index_, host_order_, position_;
  int min_ranks_ = 0, max_ranks_ = 0;
  double min_gbits_ = 0;
  std::shared_ptr<const Topology> groups_;  // null: the hosts
};

}  // namespace taco::pg
