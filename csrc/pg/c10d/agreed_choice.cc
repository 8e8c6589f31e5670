#include "pg/c10d/agreed_choice.h"

#include <ATen/ops/empty.h>

#include "base/log.h"
#include "base/timeline.h"
#include "edge/errors.h"

namespace taco::pg {
namespace {

constexpr std::size_t kCodes = 2;  // before the times: what may be chosen, and the same negative

double seconds_of(Time time) { return static_cast<double>(time) / kSecond; }

}  // namespace

std::unique_ptr<AgreedChoice> AgreedChoice::create(c10::intrusive_ptr<Backend> backend,
                                                   const lightcc::Settings& settings) {
  const bool crosses = backend->communicator()->topology().groups().hosts() > 1;
  const bool may_choose = settings.compression == lightcc::Compression::kAuto &&
                          (settings.may_top_k || settings.small != lightcc::Compression::kNone);
  if (!crosses || !may_choose) return nullptr;
  return std::make_unique<AgreedChoice>(std::move(backend), settings);
}

AgreedChoice::AgreedChoice(c10::intrusive_ptr<Backend> backend, const lightcc::Settings& settings)
    : backend_(std::move(backend)),
      settings_(settings),
      automatic_([this](std::uint64_t bytes, lightcc::Way way) { return cost_of(bytes, way); }) {}

std::optional<Cost> AgreedChoice::cost_of(std::uint64_t bytes, lightcc::Way way) const {
  if (!lightcc::may_use(settings_, way, bytes)) return std::nullopt;
  const Result<std::shared_ptr<const Codec>> codec =
      lightcc::codec_for(lightcc::by_way(settings_, way), bytes, step_);
  if (!codec.ok()) return std::nullopt;
  return backend_->communicator()->predict_average(bytes, codec.value());
}

void AgreedChoice::started(std::size_t index, std::uint64_t bytes, Time ready, Time started,
                           WorkPtr work) {
  started_.push_back({index, bytes, ready, started, std::move(work)});
}

std::vector<lightcc::Averaged> AgreedChoice::averaged() const {
  std::vector<lightcc::Averaged> all;
  for (const Started& one : started_) {
    const WorkState& state = *static_cast<Work*>(one.work.get())->state();
    Time end = one.started;
    for (const OperationPtr& operation : state.operations) {
      end = std::max(end, one.started + operation->elapsed());
    }
    all.push_back({one.index, one.bytes, seconds_of(one.ready), seconds_of(end)});
  }
  return all;
}

std::optional<std::map<std::size_t, lightcc::Way>> AgreedChoice::step_begins(std::int64_t step) {
  step_ = step;
  const bool anew = automatic_.step_done(averaged());
  started_.clear();
  const std::optional<lightcc::Decision> decision = heard();
  ask();
  if (decision) tell(*decision);
  if (!anew && !(decision && decision->changed)) return std::nullopt;
  std::map<std::size_t, lightcc::Way> ways = automatic_.ways();
  std::lock_guard lock(mutex_);
  chosen_.clear();
  for (const auto& [index, way] : ways) {
    const lightcc::Compression compression = lightcc::by_way(settings_, way).compression;
    chosen_.emplace_back(way == lightcc::Way::kExact ? "float32" : lightcc::name_of(compression));
  }
  return ways;
}

std::optional<lightcc::Decision> AgreedChoice::heard() {
  if (!agreement_) return std::nullopt;
  const WorkPtr agreement = std::move(agreement_);
  agreement->wait();
  check_that_all_choose_alike();
  const double* values = times_.const_data_ptr<double>();
  return automatic_.answer({values + kCodes, values + times_.numel()});
}

// Settings are not compared when groups are made: models come later.
void AgreedChoice::check_that_all_choose_alike() const {
  const double* values = times_.const_data_ptr<double>();
  const auto largest = static_cast<std::uint64_t>(values[0]);
  const auto least = static_cast<std::uint64_t>(-values[1]);
  if (largest == least) return;
  const std::uint64_t mine = lightcc::choice_code(settings_);
  const std::string here = lightcc::describe_choice(mine);
  std::string there = lightcc::describe_choice(mine == largest ? least : largest);
  if (there == here) there += " with another ratio, threshold or warm-up";
  raise(Status(Code::kMismatch, "lightcc: rank " + std::to_string(backend_->getRank()) +
                                    " lets \"auto\" choose among " + here +
                                    "; another rank among " + there +
                                    ": all ranks must call compress() alike"));
}

void AgreedChoice::ask() {
  const std::optional<std::vector<double>> question = automatic_.question();
  if (!question) return;
  times_ = at::empty({static_cast<std::int64_t>(kCodes + question->size())}, at::kDouble);
  double* values = times_.data_ptr<double>();
  const auto code = static_cast<double>(lightcc::choice_code(settings_));
  values[0] = code;
  values[1] = -code;
  std::copy(question->begin(), question->end(), values + kCodes);
  std::vector<at::Tensor> tensors = {times_};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  agreement_ = backend_->allreduce(tensors, options);
}

// Once a decision, and on one rank: all have come to the same.
void AgreedChoice::tell(const lightcc::Decision& decision) {
  const bool first = !std::exchange(told_, true);
  if (backend_->getRank() != 0 || !(first || decision.changed)) return;
  const std::string text = lightcc::describe(decision, lightcc::names_of_ways(settings_));
  TACO_LOG_INFO("lightcc", "step %lld: %s", static_cast<long long>(step_), text.c_str());
  const Time now = monotonic_now();
  timeline::add({.name = "choice of step " + std::to_string(step_),
                 .track = "lightcc",
                 .process = 0,
                 .started = now,
                 .ended = now,
                 .arguments = "\"choice\":" + timeline::quoted(text)});
}

std::vector<std::string> AgreedChoice::chosen() const {
  std::lock_guard lock(mutex_);
  return chosen_;
}

}  // namespace taco::pg
