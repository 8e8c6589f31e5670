#include "pg/planner.h"

#include <algorithm>

#include "pg/algorithms/algorithm.h"

namespace taco::pg {

namespace {

constexpr std::size_t kMostSchedules = 512;
constexpr std::size_t kMostCachedSteps = 1 << 17;

bool has_schedule(Kind kind) {
  return kind != Kind::kSend && kind != Kind::kRecv && kind != Kind::kRecvAny;
}

const Algorithm* find(Kind kind, const std::string& name) {
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->kind == kind && name == algorithm->name) return algorithm;
  }
  return nullptr;
}

bool is_known(const std::string& name) {
  const auto all = all_algorithms();
  return std::any_of(all.begin(), all.end(),
                     [&](const Algorithm* algorithm) { return name == algorithm->name; });
}

std::string names_of(Kind kind) {
  std::string names;
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->kind == kind)
      names += (names.empty() ? "" : ", ") + std::string(algorithm->name);
  }
  return names;
}

std::string all_names() {
  std::vector<std::string> names;
  for (const Algorithm* algorithm : all_algorithms()) {
    if (std::find(names.begin(), names.end(), algorithm->name) == names.end()) {
      names.push_back(algorithm->name);
    }
  }
  std::string text = "auto";
  for (const std::string& name : names) text += ", " + name;
  return text;
}

std::optional<Kind> kind_named(const std::string& name) {
  for (const Algorithm* algorithm : all_algorithms()) {
    if (name == name_of(algorithm->kind)) return algorithm->kind;
  }
  return std::nullopt;
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

Problem equal_all_to_all(std::uint64_t block_bytes) {
  Problem problem;
  problem.kind = Kind::kAllToAll;
  problem.equal_splits = true;
  problem.bytes = block_bytes;
  return problem;
}

}  // namespace

Planner::Planner(Topology topology, CostParameters parameters, int rank)
    : topology_(std::move(topology)), parameters_(parameters), rank_(rank) {}

Result<std::unique_ptr<Planner>> Planner::create(Topology topology, CostParameters parameters,
                                                 int rank, const std::string& forced) {
  if (rank < 0 || rank >= topology.world()) {
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) +
                                              " is not in a group of " +
                                              std::to_string(topology.world()));
  }
  std::unique_ptr<Planner> planner(new Planner(std::move(topology), parameters, rank));
  TACO_RETURN_IF_ERROR(planner->parse_forced(forced));
  std::uint64_t hash = planner->topology_.hash() ^ (parameters.hash() * 0x9e3779b97f4a7c15);
  for (const char c : forced) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  planner->parameter_hash_ = hash ^ (hash >> 32);
  const Problem shortest = equal_all_to_all(1);
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->kind != Kind::kAllToAll) continue;
    planner->equal_splits_matter_ |= planner->needs_equal_splits(*algorithm, shortest);
  }
  return planner;
}

Status Planner::check(const std::string& forced) {
  return create(Topology::uniform(1, 1, 0), CostParameters{}, 0, forced).status();
}

Status Planner::parse_forced(const std::string& forced) {
  std::size_t begin = 0;
  while (begin <= forced.size()) {
    const std::size_t end = std::min(forced.find(',', begin), forced.size());
    TACO_RETURN_IF_ERROR(parse_item(forced, trimmed(forced.substr(begin, end - begin))));
    begin = end + 1;
  }
  return Status();
}

// One part of `forced`: an algorithm for everything it can do, or kind=algorithm.
Status Planner::parse_item(const std::string& forced, const std::string& item) {
  const auto refusal = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, "TACO_ALGORITHM=" + forced + ": " + why);
  };
  if (item.empty() || item == "auto") return Status();
  const std::size_t equals = item.find('=');
  if (equals == std::string::npos) {
    if (!is_known(item)) {
      return refusal("no algorithm \"" + item + "\"; there are: " + all_names());
    }
    forced_everywhere_ = item;
    return Status();
  }
  const std::string name = trimmed(item.substr(0, equals));
  const std::string algorithm = trimmed(item.substr(equals + 1));
  const std::optional<Kind> kind = kind_named(name);
  if (!kind) return refusal("no collective \"" + name + "\"");
  if (algorithm == "auto") return Status();
  if (!find(*kind, algorithm)) {
    return refusal(name + " has no \"" + algorithm + "\"; it has: " + names_of(*kind));
  }
  forced_.push_back({*kind, algorithm});
  return Status();
}

// It fits with the promise of equal blocks, and not without.
bool Planner::needs_equal_splits(const Algorithm& algorithm, const Problem& problem) const {
  Problem unequal = problem;
  unequal.equal_splits = false;
  return !algorithm.unfit(problem, topology_) && algorithm.unfit(unequal, topology_);
}

bool Planner::relies_on_equal_splits(std::uint64_t block_bytes) const {
  if (!equal_splits_matter_) return false;
  const Problem problem = equal_all_to_all(block_bytes);
  Result<const Algorithm*> chosen = choose(problem);
  return !chosen.ok() || needs_equal_splits(**chosen, problem);  // plan() will say what is wrong
}

std::vector<Prediction> Planner::predictions(const Problem& problem) const {
  std::vector<Prediction> found;
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->kind != problem.kind || algorithm->unfit(problem, topology_)) continue;
    const Work work = algorithm->work(problem, topology_);
    found.push_back({algorithm->name, predict(work, topology_, parameters_)});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Prediction& a, const Prediction& b) { return a.seconds < b.seconds; });
  return found;
}

Result<const Algorithm*> Planner::choose(const Problem& problem) const {
  const Algorithm* forced = nullptr;
  if (!forced_everywhere_.empty()) forced = find(problem.kind, forced_everywhere_);
  for (const Forced& item : forced_) {
    if (item.kind == problem.kind) forced = find(item.kind, item.algorithm);
  }
  const std::vector<Prediction> fitting = predictions(problem);
  if (!forced) return find(problem.kind, fitting.front().algorithm);
  if (const char* reason = forced->unfit(problem, topology_)) {
    std::string names;
    for (const Prediction& prediction : fitting) {
      names += (names.empty() ? "" : ", ") + std::string(prediction.algorithm);
    }
    return Status(Code::kInvalidArgument, std::string("TACO_ALGORITHM forces ") + forced->name +
                                              ", which does not fit this " + name_of(problem.kind) +
                                              " because " + reason + "; these fit: " + names);
  }
  return forced;
}

// How many messages of `chunk` bytes to have open. Inside a host no more than keeps the staged
// chunks in the processors' caches; between hosts enough to cover the wire and its queues while a
// receive's announcement travels to the sender.
//
// Who hears its peers in turn opens receives of little more than that, and so decides whose data
// comes next; sends it has ready for all, so that somebody's turn it always is. With all receives
// open at once, senders share each cable by chance, and in the end some cables are idle while
// others have work left: measured with 4 hosts at 1 Gbit/s, all_to_all of 40 MiB took 1.16 times
// the wire's time, and in turn 1.02.
static void set_windows(Schedule& schedule, std::uint64_t chunk, bool in_turn,
                        const Topology& topology, const CostParameters& parameters) {
  constexpr std::uint64_t kSmallMessage = 64 << 10, kNetworkBytes = 32 << 20, kMost = 512;
  constexpr std::uint64_t kLeastInTurn = 1 << 20;
  constexpr double kSecondsInTurn = 1e-3;
  const bool network = topology.hosts() > 1;
  const std::uint64_t wanted = std::max<std::uint64_t>(network ? kNetworkBytes / chunk : 32, 32);
  const std::uint64_t window = chunk <= kSmallMessage ? kMost : std::min(wanted, kMost);
  schedule.send_window = schedule.receive_window = static_cast<std::uint32_t>(window);
  if (!network) return;
  // A cable waits for nobody: a long copy must not keep a rank from feeding it.
  schedule.turn_bytes = 64 << 10;
  if (!in_turn) return;
  const double gbits = topology.min_gbits() > 0 ? topology.min_gbits() : parameters.default_gbits;
  const auto ahead = static_cast<std::uint64_t>(gbits * 1e9 / 8 * kSecondsInTurn);
  schedule.send_window = kMost;
  schedule.receive_window = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(std::max(kLeastInTurn, ahead) / chunk, 2, kMost));
}

Result<std::shared_ptr<const Schedule>> Planner::make(const Problem& problem) const {
  Result<const Algorithm*> chosen = choose(problem);
  if (!chosen.ok()) return chosen.status();
  const Algorithm& algorithm = **chosen;
  const Work work = algorithm.work(problem, topology_);
  const std::uint64_t chunk = chunk_for(work, topology_, parameters_);
  auto schedule =
      std::make_shared<Schedule>(build_schedule(algorithm, problem, topology_, chunk, rank_));
  set_windows(*schedule, chunk, work.in_turn, topology_, parameters_);
  schedule->predicted_seconds = predict(work, topology_, parameters_);
  return std::shared_ptr<const Schedule>(std::move(schedule));
}

Result<std::shared_ptr<const Schedule>> Planner::plan(const Problem& problem) {
  if (!has_schedule(problem.kind)) {
    return Status(Code::kInvalidArgument,
                  std::string(name_of(problem.kind)) + " is no collective and has no schedule");
  }
  if (const auto hit = index_.find(&problem); hit != index_.end()) {
    recent_.splice(recent_.begin(), recent_, hit->second);
    return hit->second->schedule;
  }
  Result<std::shared_ptr<const Schedule>> made = make(problem);
  if (!made.ok()) return made;
  recent_.push_front({problem, *made});
  index_.emplace(&recent_.front().problem, recent_.begin());
  cached_steps_ += (*made)->steps.size();
  evict();
  return made;
}

// The newest always stays, however long.
void Planner::evict() {
  while (recent_.size() > 1 &&
         (recent_.size() > kMostSchedules || cached_steps_ > kMostCachedSteps)) {
    cached_steps_ -= recent_.back().schedule->steps.size();
    index_.erase(&recent_.back().problem);
    recent_.pop_back();
  }
}

}  // namespace taco::pg
