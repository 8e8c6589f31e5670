#include "pg/planning/planner.h"

#include <algorithm>
#include <functional>

#include "base/names.h"

namespace taco::pg {

namespace {

constexpr std::size_t kMaxSchedules = 512;
constexpr std::size_t kMaxCachedSteps = 1 << 17;

const Algorithm* find(Algorithms known, Kind kind, const std::string& name) {
  for (const Algorithm* algorithm : known) {
    if (algorithm->kind == kind && name == algorithm->name) return algorithm;
  }
  return nullptr;
}

bool is_known(Algorithms known, const std::string& name) {
  return std::any_of(known.begin(), known.end(),
                     [&](const Algorithm* algorithm) { return name == algorithm->name; });
}

using Names = std::vector<std::string_view>;

void add_once(Names& names, std::string_view name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

Names names_of(Algorithms known, Kind kind) {
  Names names;
  for (const Algorithm* algorithm : known) {
    if (algorithm->kind == kind) names.emplace_back(algorithm->name);
  }
  return names;
}

Names all_names(Algorithms known) {
  Names names = {"auto"};
  for (const Algorithm* algorithm : known) add_once(names, algorithm->name);
  return names;
}

Names all_kinds(Algorithms known) {
  Names names;
  for (const Algorithm* algorithm : known) add_once(names, name_of(algorithm->kind));
  return names;
}

std::string joined(const Names& names) {
  std::string text;
  for (const std::string_view name : names) append_name(text, name);
  return text;
}

std::string suggest(const std::string& name, const Names& known) {
  const std::string near = suggestion(name, known);
  return near + (near.empty() ? "; there are: " : " There are: ") + joined(known);
}

std::optional<Kind> kind_named(Algorithms known, const std::string& name) {
  for (const Algorithm* algorithm : known) {
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

Planner::Planner(Algorithms algorithms, Topology topology, CostParameters parameters, int rank,
                 const TwoDimensionalChoice& choice)
    : algorithms_(algorithms),
      topology_(std::move(topology)),
      parameters_(parameters),
      rank_(rank),
      choice_(choice) {}

Result<std::unique_ptr<Planner>> Planner::create(Algorithms algorithms, Topology topology,
                                                 CostParameters parameters, int rank,
                                                 const std::string& forced,
                                                 const TwoDimensionalChoice& choice) {
  if (rank < 0 || rank >= topology.world()) {
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) +
                                              " is not in a group of " +
                                              std::to_string(topology.world()));
  }
  std::unique_ptr<Planner> planner(
      new Planner(algorithms, std::move(topology), parameters, rank, choice));
  TACO_RETURN_IF_ERROR(planner->parse_forced(forced));
  const Problem shortest = equal_all_to_all(1);
  for (const Algorithm* algorithm : algorithms) {
    if (algorithm->kind != Kind::kAllToAll) continue;
    planner->equal_splits_matter_ |= planner->needs_equal_splits(*algorithm, shortest);
  }
  return planner;
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
    return Status(Code::kInvalidArgument, "\"" + forced + "\": " + why);
  };
  if (item.empty() || item == "auto") return Status();
  const std::size_t equals = item.find('=');
  if (equals == std::string::npos) {
    if (!is_known(algorithms_, item)) {
      return refusal("no algorithm \"" + item + "\"" + suggest(item, all_names(algorithms_)));
    }
    forced_everywhere_ = item;
    return Status();
  }
  const std::string name = trimmed(item.substr(0, equals));
  const std::string algorithm = trimmed(item.substr(equals + 1));
  const std::optional<Kind> kind = kind_named(algorithms_, name);
  if (!kind)
    return refusal("no collective \"" + name + "\"" + suggest(name, all_kinds(algorithms_)));
  if (algorithm == "auto") return Status();
  if (!find(algorithms_, *kind, algorithm)) {
    return refusal(name + " has no \"" + algorithm + "\"" +
                   suggest(algorithm, names_of(algorithms_, *kind)));
  }
  forced_.push_back({*kind, algorithm});
  return Status();
}

Problem average_problem(std::uint64_t bytes, std::shared_ptr<const Codec> codec) {
  Problem problem;
  problem.kind = Kind::kAllReduce;
  problem.element_bytes = sizeof(float);
  problem.bytes = bytes;
  problem.average = true;
  problem.in_place = true;
  problem.codec = std::move(codec);
  return problem;
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

// The algorithms that fit, less those that the user, or a codec, rules out.
std::vector<const Algorithm*> Planner::candidates(const Problem& problem) const {
  std::vector<const Algorithm*> fitting;
  for (const Algorithm* algorithm : algorithms_) {
    if (algorithm->kind == problem.kind && !algorithm->unfit(problem, topology_))
      fitting.push_back(algorithm);
  }
  const auto keep = [&](auto wanted) {
    if (std::any_of(fitting.begin(), fitting.end(), wanted))
      std::erase_if(fitting, std::not_fn(wanted));
  };
  keep([](const Algorithm* algorithm) { return algorithm->coded; });
  using Use = TwoDimensionalChoice::Use;
  const bool allowed = choice_.use != Use::kNever && problem.bytes <= choice_.max_bytes;
  const bool wanted = choice_.use == Use::kWhereItFits && allowed;
  if (wanted || !allowed)
    keep([&](const Algorithm* algorithm) { return algorithm->two_dimensional == wanted; });
  return fitting;
}

std::vector<Prediction> Planner::predictions(const Problem& problem) const {
  std::vector<Prediction> found;
  for (const Algorithm* algorithm : candidates(problem)) {
    const Workload work = algorithm->work(problem, topology_);
    found.push_back({cost_of(work, topology_, parameters_), algorithm});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Prediction& a, const Prediction& b) { return a.seconds < b.seconds; });
  return found;
}

Prediction Planner::prediction(const Problem& problem) const {
  const Algorithm* const forced = forced_for(problem);
  if (forced == nullptr || forced->unfit(problem, topology_)) return predictions(problem).front();
  return {cost_of(forced->work(problem, topology_), topology_, parameters_), forced};
}

const Algorithm* Planner::forced_for(const Problem& problem) const {
  const Algorithm* forced = nullptr;
  if (!forced_everywhere_.empty()) forced = find(algorithms_, problem.kind, forced_everywhere_);
  for (const Forced& item : forced_) {
    if (item.kind == problem.kind) forced = find(algorithms_, item.kind, item.algorithm);
  }
  if (forced == nullptr || forced->coded || problem.codec == nullptr) return forced;
  return candidates(problem).front()->coded ? nullptr : forced;
}

Result<const Algorithm*> Planner::choose(const Problem& problem) const {
  const Algorithm* const forced = forced_for(problem);
  const std::vector<Prediction> fitting = predictions(problem);
  if (!forced) return fitting.front().algorithm;
  if (const char* reason = forced->unfit(problem, topology_)) {
    Names names;
    for (const Prediction& prediction : fitting) names.emplace_back(prediction.algorithm->name);
    return Status(Code::kInvalidArgument,
                  std::string("TACO_ALGORITHM, or Options.algorithm, forces ") + forced->name +
                      ", which does not fit this " + name_of(problem.kind) + " because " + reason +
                      "; these fit: " + joined(names));
  }
  return forced;
}

static std::uint64_t mean_send(const Schedule& schedule) {
  std::uint64_t bytes = 0;
  for (const Step& step : schedule.steps) {
    if (step.kind == StepKind::kSend) bytes += step.transfers * schedule.message_bytes(step);
  }
  return std::max<std::uint64_t>(bytes / std::max(schedule.sends, 1u), 1);
}

// How many messages of `chunk` bytes to have open. Inside a host no more than keeps the staged
// chunks in the processors' caches; between hosts enough to cover the wire and its queues while a
// receive's announcement travels to the sender.
//
// With everything open at once, senders share each cable by chance, and in the end some cables are
// idle while others have work left. So who has several hosts to send to goes on to the next once
// the last has got its messages, but for what fills the wire meanwhile. And who hears them in turn
// opens receives of somewhat more than that, so that the turn is always somebody's. Measured with 4
// hosts at 1 Gbit/s, in times of what the wire takes: all_to_all of 40 MiB 1.16, with receives in
// turn 1.03, with both 1.02; all_reduce of 1 MiB 1.02 and one in ten 1.2, with sends in turn 1.00
// and 1.03.
static void set_windows(Schedule& schedule, std::uint64_t chunk, const Workload& work,
                        const Topology& topology, const CostParameters& parameters) {
  constexpr std::uint64_t kSmallMessage = 64 << 10, kNetworkBytes = 32 << 20, kMax = 512;
  constexpr std::uint64_t kMinSent = 256 << 10, kMinHeard = 1 << 20;
  constexpr double kSecondsSent = 0.4e-3, kSecondsHeard = 1e-3, kLatencies = 8;
  const bool network = topology.hosts() > 1;
  const std::uint64_t wanted = std::max<std::uint64_t>(network ? kNetworkBytes / chunk : 32, 32);
  const std::uint64_t window = chunk <= kSmallMessage ? kMax : std::min(wanted, kMax);
  schedule.send_window = schedule.receive_window = static_cast<std::uint32_t>(window);
  if (!network) return;
  // A cable waits for nobody: a long copy must not keep a rank from feeding it.
  schedule.turn_bytes = 64 << 10;
  const double gbits = topology.min_gbits() > 0 ? topology.min_gbits() : parameters.default_gbits;
  const auto messages = [&](std::uint64_t least, double seconds, std::uint64_t message) {
    seconds = std::max(seconds, kLatencies * parameters.network.latency);
    const auto bytes = std::max(least, static_cast<std::uint64_t>(gbits * 1e9 / 8 * seconds));
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes / message, 2, kMax));
  };
  if (work.in_turn || work.incast) {
    schedule.send_window = messages(kMinSent, kSecondsSent, mean_send(schedule));
  }
  if (work.in_turn) schedule.receive_window = messages(kMinHeard, kSecondsHeard, chunk);
}

Result<std::shared_ptr<const Schedule>> Planner::make(const Problem& problem) const {
  Result<const Algorithm*> chosen = choose(problem);
  if (!chosen.ok()) return chosen.status();
  const Algorithm& algorithm = **chosen;
  const Workload work = algorithm.work(problem, topology_);
  const std::uint64_t chunk = chunk_for(work, topology_, parameters_);
  auto schedule =
      std::make_shared<Schedule>(build_schedule(algorithm, problem, topology_, chunk, rank_));
  set_windows(*schedule, chunk, work, topology_, parameters_);
  schedule->predicted_seconds = predict(work, topology_, parameters_);
  return std::shared_ptr<const Schedule>(std::move(schedule));
}

Result<std::shared_ptr<const Schedule>> Planner::plan(const Problem& problem) {
  if (!is_collective(problem.kind)) {
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
         (recent_.size() > kMaxSchedules || cached_steps_ > kMaxCachedSteps)) {
    cached_steps_ -= recent_.back().schedule->steps.size();
    index_.erase(&recent_.back().problem);
    recent_.pop_back();
  }
}

}  // namespace taco::pg
