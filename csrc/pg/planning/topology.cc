#include "pg/planning/topology.h"

#include <algorithm>
#include <bit>
#include <string>

namespace taco::pg {

Result<Topology> Topology::make(std::vector<int> host_of_rank, std::vector<double> host_gbits) {
  if (host_of_rank.empty()) return Status(Code::kInvalidArgument, "a topology needs a rank");
  const int hosts = *std::max_element(host_of_rank.begin(), host_of_rank.end()) + 1;
  Topology made;
  made.ranks_of_host_.resize(std::max(hosts, 0));
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const int host = host_of_rank[rank];
    if (host < 0) {
      return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) + " has no host");
    }
    made.local_index_.push_back(static_cast<int>(made.ranks_of_host_[host].size()));
    made.ranks_of_host_[host].push_back(static_cast<int>(rank));
  }
  made.position_.resize(host_of_rank.size());
  made.min_ranks_ = static_cast<int>(host_of_rank.size());
  for (const std::vector<int>& ranks : made.ranks_of_host_) {
    if (ranks.empty()) return Status(Code::kInvalidArgument, "host indices are not dense");
    const int count = static_cast<int>(ranks.size());
    made.min_ranks_ = std::min(made.min_ranks_, count);
    made.max_ranks_ = std::max(made.max_ranks_, count);
    for (const int rank : ranks) {
      made.position_[rank] = static_cast<int>(made.host_order_.size());
      made.host_order_.push_back(rank);
    }
  }
  host_gbits.resize(made.ranks_of_host_.size(), 0);
  for (const double gbits : host_gbits) {
    if (gbits > 0 && (made.min_gbits_ == 0 || gbits < made.min_gbits_)) made.min_gbits_ = gbits;
  }
  made.host_of_rank_ = std::move(host_of_rank);
  made.host_gbits_ = std::move(host_gbits);
  return made;
}

Result<Topology> Topology::grouped(int size) const {
  if (size < 1 || world() % size != 0) {
    std::string hosts;
    for (const std::vector<int>& ranks : ranks_of_host_) {
      hosts += (hosts.empty() ? "" : ", ") + std::to_string(ranks.size());
    }
    return Status(Code::kInvalidArgument,
                  "groups of " + std::to_string(size) + " ranks do not divide the " +
                      std::to_string(world()) + " ranks of hosts with " + hosts + " ranks");
  }
  std::vector<int> group_of_rank(host_of_rank_.size());
  for (std::size_t place = 0; place < host_order_.size(); ++place) {
    group_of_rank[host_order_[place]] = static_cast<int>(place) / size;
  }
  Result<Topology> groups = make(std::move(group_of_rank), {});
  if (!groups.ok()) return groups.status();
  Topology made = *this;
  made.groups_ = std::make_shared<const Topology>(std::move(*groups));
  return made;
}

Topology Topology::one_host(int world) { return uniform(1, world, 0); }

Topology Topology::uniform(int hosts, int ranks_per_host, double gbits) {
  std::vector<int> host_of_rank;
  for (int host = 0; host < hosts; ++host) {
    host_of_rank.insert(host_of_rank.end(), ranks_per_host, host);
  }
  return *make(std::move(host_of_rank), std::vector<double>(hosts, gbits));
}

}  // namespace taco::pg
