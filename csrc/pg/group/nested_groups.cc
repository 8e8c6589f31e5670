#include "pg/group/nested_groups.h"

#include <algorithm>
#include <utility>

#include "base/mixed_bits.h"

namespace taco::pg {
namespace {

Status check_members(std::span<const int> members, const GroupOptions& root) {
  const auto no_member = [&](int rank) { return rank < 0 || rank >= root.world; };
  const bool rising =
      std::ranges::is_sorted(members) && std::ranges::adjacent_find(members) == members.end();
  if (!rising || std::ranges::any_of(members, no_member)) {
    return invalid("the members of a group of '" + root.name + "' must be ranks from 0 to " +
                   std::to_string(root.world - 1) + ", each once and in rising order");
  }
  if (std::ranges::binary_search(members, root.rank)) return Status();
  return invalid("rank " + std::to_string(root.rank) + " of group '" + root.name +
                 "' makes a group of which it is no member");
}

// Hosts are numbered anew, in the order in which the members name them. How many ranks
// LIGHT_INTRA_SIZE puts together is said of all of the root's.
void keep_members(std::span<const int> members, GroupOptions& options) {
  const GroupOptions root = options;
  options.peers.clear();
  options.global_ranks.clear();
  options.host_of_rank.clear();
  options.host_gbits.clear();
  options.intra_size = 0;
  options.world = static_cast<int>(members.size());
  std::vector<int> hosts;
  for (const int rank : members) {
    if (rank == root.rank) options.rank = static_cast<int>(options.peers.size());
    if (!root.peers.empty()) options.peers.push_back(root.peers[rank]);
    options.global_ranks.push_back(root.global_ranks.empty() ? rank : root.global_ranks[rank]);
    const int host = root.host_of_rank.empty() ? 0 : root.host_of_rank[rank];
    const auto known = std::ranges::find(hosts, host);
    options.host_of_rank.push_back(static_cast<int>(known - hosts.begin()));
    if (known != hosts.end()) continue;
    hosts.push_back(host);
    if (!root.host_gbits.empty()) options.host_gbits.push_back(root.host_gbits[host]);
  }
}

}  // namespace

NestedGroups::NestedGroups(std::shared_ptr<harp::Stack> stack, GroupOptions root)
    : stack_(std::move(stack)), root_(std::move(root)) {}

std::uint64_t NestedGroups::id_of(std::uint64_t of, std::uint64_t number) {
  return harp::group_id(harp::Service::kCollectives, mixed_bits(of ^ mixed_bits(number + 1)) | 1);
}

Result<std::shared_ptr<Communicator>> NestedGroups::open(std::uint64_t id, const Parent& parent,
                                                         const std::string& suffix,
                                                         std::optional<WindowMemory> window,
                                                         std::span<const int> members) {
  if (!members.empty()) TACO_RETURN_IF_ERROR(check_members(members, root_));
  std::lock_guard lock(mutex_);
  if (closed_) {
    return Status(Code::kAborted,
                  "group '" + root_.name + "' was destroyed; no operation can start");
  }
  GroupOptions options = root_;
  options.id = id;
  options.parent = parent;
  options.name += suffix;
  options.window = window;
  if (!members.empty()) keep_members(members, options);
  Result<std::shared_ptr<Communicator>> made = Communicator::create(stack_, std::move(options));
  if (!made.ok()) return made;
  std::erase_if(open_, [](const auto& weak) { return weak.expired(); });
  open_.push_back(*made);
  return made;
}

std::shared_ptr<harp::Stack> NestedGroups::stack() const {
  std::lock_guard lock(mutex_);
  return stack_;
}

std::vector<std::shared_ptr<Communicator>> NestedGroups::live() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Communicator>> all;
  for (const auto& weak : open_) {
    if (auto communicator = weak.lock()) all.push_back(std::move(communicator));
  }
  return all;
}

Status NestedGroups::close(Duration linger) {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    stack_.reset();
  }
  Status unreported;
  for (const auto& communicator : live()) {
    if (Status status = communicator->close(linger); unreported.ok()) {
      unreported = std::move(status);
    }
  }
  return unreported;
}

void NestedGroups::set_timeout(Duration timeout) {
  {
    std::lock_guard lock(mutex_);
    root_.timeout = timeout;
  }
  for (const auto& communicator : live()) communicator->set_timeout(timeout);
}

}  // namespace taco::pg
