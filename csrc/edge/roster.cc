#include "edge/roster.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/digest.h"
#include "base/far_future.h"
#include "base/mixed_bits.h"
#include "base/names.h"
#include "edge/store_door.h"

namespace taco::edge {
namespace {

constexpr Duration kPatienceForName = 300 * kSecond;

// The first that asks gives the job its name.
Result<std::string> name_of_job(StoreDoor& door) {
  constexpr const char* kAsked = "taco/job/asked";
  constexpr const char* kName = "taco/job/name";
  Result<std::int64_t> asked = door.add(kAsked, 1);
  if (!asked.ok()) return asked.status();
  if (*asked == 1) {
    const std::string name = random_token();
    TACO_RETURN_IF_ERROR(door.set(kName, name));
    return name;
  }
  Result<std::string> name = door.hear(kName);
  if (name.ok() && name->empty()) {
    return Status(Code::kRendezvous, "Timed out: no rank has named the job at " + door.where() +
                                         ". Has the first one failed? Then start with a new store");
  }
  return name;
}

}  // namespace

Result<std::shared_ptr<Roster>> Roster::open(const c10::intrusive_ptr<c10d::Store>& store,
                                             const RendezvousOptions& options) {
  const Duration timeout = options.timeout > 0 ? options.timeout : kPatienceForName;
  StoreDoor door(store, later(monotonic_now(), timeout), options.world);
  Result<std::shared_ptr<StackUse>> use =
      StackUse::take(door.host(), {options.group, options.world, options.rank}, options.engines);
  if (!use.ok()) return use.status();
  MemberHandle self;
  self.word = options.word;
  Result<std::string> job = name_of_job(door);
  if (!job.ok()) return job.status();
  self.job = std::move(job).value();
  Result<Hello> hello = hello_of(**use, options.settings);
  if (!hello.ok()) return hello.status();
  self.hello = std::move(hello).value();
  return std::make_shared<Roster>(options, std::move(use).value(), std::move(self));
}

std::string Roster::handle() const {
  MemberHandle now = self_;
  bring_addresses(*use_, now.hello);
  return now.encode();
}

Result<std::vector<MemberHandle>> Roster::read(const std::vector<std::string>& handles,
                                               bool in_order) const {
  if (handles.empty()) {
    return invalid("group '" + options_.group +
                   "' cannot be reconfigured: no handle is given, so "
                   "no rank would be left");
  }
  std::vector<MemberHandle> members;
  for (std::size_t rank = 0; rank < handles.size(); ++rank) {
    Result<MemberHandle> member = MemberHandle::decode(handles[rank]);
    if (!member.ok()) return member.status().with_prefix("handle " + std::to_string(rank) + ": ");
    members.push_back(std::move(member).value());
  }
  if (!in_order) {
    std::sort(members.begin(), members.end(), [](const MemberHandle& a, const MemberHandle& b) {
      return std::tie(a.hello.host, a.hello.token) < std::tie(b.hello.host, b.hello.token);
    });
  }
  return members;
}

Result<int> Roster::own_rank(const std::vector<MemberHandle>& members) const {
  const auto own = std::ranges::find_if(
      members, [&](const MemberHandle& member) { return member.hello.token == self_.hello.token; });
  if (own != members.end()) return static_cast<int>(own - members.begin());
  return invalid("this rank's own handle is not among the " + count_text(members.size(), "handle") +
                 " of the new group '" + options_.group +
                 "': a rank that is left out does not reconfigure");
}

Status Roster::check(const std::vector<MemberHandle>& members, int own) const {
  for (int rank = 0; rank < static_cast<int>(members.size()); ++rank) {
    const MemberHandle& member = members[rank];
    TACO_RETURN_IF_ERROR(compare(own, self_.hello, rank, member.hello));
    if (member.job != self_.job) {
      return invalid("handle " + std::to_string(rank) +
                     " is of another job: its rank came by another store than this one");
    }
    for (int other = 0; other < rank; ++other) {
      if (members[other].hello.token != member.hello.token) continue;
      return invalid("handles " + std::to_string(other) + " and " + std::to_string(rank) +
                     " are of the same rank: each member is listed once");
    }
  }
  return Status();
}

std::uint64_t Roster::group_id(std::int64_t number) const {
  const std::uint64_t digest = Digest().add_text(options_.group).add_value(number).value();
  return harp::group_id(options_.service, mixed_bits(digest) | 1);
}

Result<Gathering> Roster::gather(const std::vector<std::string>& handles, bool in_order,
                                 std::int64_t number) {
  Result<std::vector<MemberHandle>> members = read(handles, in_order);
  if (!members.ok()) return members.status();
  Result<int> own = own_rank(*members);
  if (!own.ok()) return own.status();
  TACO_RETURN_IF_ERROR(check(*members, *own));
  {
    std::lock_guard lock(mutex_);
    if (!used_.insert(number).second) {
      return Status(Code::kRendezvous, "uuid " + std::to_string(number) +
                                           " was already used by group '" + options_.group +
                                           "': each reconfiguration needs a fresh one");
    }
  }
  RendezvousOptions options = options_;
  options.rank = *own;
  options.world = static_cast<int>(members->size());
  Table table;
  table.group_id = group_id(number);
  table.word = members->front().word;
  Digest digest;
  for (const MemberHandle& member : *members) {
    table.ranks.push_back(member.hello);
    digest.add_text(member.hello.token);
  }
  TACO_RETURN_IF_ERROR(check_distinct(table.ranks));
  Gathering gathering;
  gathering.member = {options.group, options.world, options.rank};
  gathering.use = use_;
  gathering.stack = use_->stack();
  gathering.digest = digest.value();
  TACO_RETURN_IF_ERROR(enter_table(table, options, &gathering));
  return gathering;
}

}  // namespace taco::edge
