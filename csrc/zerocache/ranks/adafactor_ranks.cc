#include "zerocache/ranks/adafactor_ranks.h"

#include <algorithm>
#include <queue>
#include <utility>
#include <variant>

#include "zerocache/ranks/agreement.h"
#include "zerocache/ranks/exchange.h"

namespace taco::zerocache {
namespace {

using kernels::AdafactorShape;
using kernels::AdafactorStep;

std::vector<const Update*> adafactors(std::span<const Update> updates) {
  std::vector<const Update*> found;
  for (const Update& update : updates) {
    if (std::holds_alternative<AdafactorStep>(update.step)) found.push_back(&update);
  }
  return found;
}

const AdafactorStep& step_of(const Update& update) { return std::get<AdafactorStep>(update.step); }

// Tensors with who looks at them: the largest first, each to the rank that has least so far.
std::vector<std::pair<const Update*, int>> dealt(std::vector<const Update*> updates, int ranks) {
  const auto elements = [](const Update* update) { return step_of(*update).shape.elements(); };
  std::stable_sort(updates.begin(), updates.end(),
                   [&](const Update* a, const Update* b) { return elements(a) > elements(b); });
  using Load = std::pair<std::size_t, int>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (int rank = 0; rank < ranks; ++rank) least.push({0, rank});
  std::vector<std::pair<const Update*, int>> found;
  for (const Update* const update : updates) {
    const Load load = least.top();
    least.pop();
    found.emplace_back(update, load.second);
    least.push({load.first + elements(update), load.second});
  }
  return found;
}

// Sums over one tensor, in what ranks tell each other of several.
struct Sums {
  const Update* update;
  std::size_t rows, columns;  // how many sums
  std::size_t first;          // where they begin: of rows, of columns, of squares of parameters
  std::size_t count() const { return rows + columns + 1; }
};

Sums sums_of(const Update& update, std::size_t first) {
  const AdafactorShape& shape = step_of(update).shape;
  return {&update, shape.matrices * shape.rows, shape.matrices * shape.columns, first};
}

// Parts that are measured together, one after the other by `first`.
using Batch = std::vector<Sums>;

std::vector<Batch> batches_of(std::span<const Update* const> updates, std::size_t most) {
  std::vector<Batch> batches;
  for (const Update* const update : updates) {
    const std::size_t end =
        batches.empty() ? 0 : batches.back().back().first + batches.back().back().count();
    if (batches.empty() || end + sums_of(*update, end).count() > most) {
      batches.push_back({sums_of(*update, 0)});
    } else {
      batches.back().push_back(sums_of(*update, end));
    }
  }
  return batches;
}

class Parts {
 public:
  Parts(Collectives& ranks, const Layout& layout, OptimizerStream& stream, const PartsOf& parts_of)
      : ranks_(ranks), layout_(layout), stream_(stream), parts_of_(parts_of) {}

  Result<AdafactorMeasures> run(std::span<const Batch> batches) {
    // A rank that fails takes part to the end, so that nobody waits for it.
    for (const Batch& batch : batches) TACO_RETURN_IF_ERROR(measure(batch));
    TACO_RETURN_IF_ERROR(agree(ranks_, own_));
    return std::move(found_);
  }

 private:
  void note(const Status& status) {
    if (own_.ok()) own_ = status;
  }

  Status measure(const Batch& batch) {
    std::vector<double> sums(batch.back().first + batch.back().count());
    for (const Sums& each : batch) {
      if (own_.ok()) note(add_up(each, std::span(sums).subspan(each.first, each.count())));
    }
    TACO_RETURN_IF_ERROR(add_over_ranks(sums));
    std::vector<double> updates(batch.size());
    for (std::size_t i = 0; i < batch.size() && own_.ok(); ++i) {
      const Sums& each = batch[i];
      const std::span<const double> all = std::span(sums).subspan(each.first, each.count());
      auto measure =
          stream_.measure(*each.update, all.first(each.rows), all.subspan(each.rows, each.columns));
      note(measure.status());
      if (!own_.ok()) break;
      measure.value().note_parameters(all.back());
      updates[i] = squares_of_updates(*each.update, measure.value());
      found_.insert_or_assign(each.update->tensor, std::move(measure).value());
    }
    TACO_RETURN_IF_ERROR(add_over_ranks(updates));
    for (std::size_t i = 0; i < batch.size() && own_.ok(); ++i) {
      found_.at(batch[i].update->tensor).note_updates(updates[i]);
    }
    return {};
  }

  // Over what this rank has. Workers share rows, then columns: so what is added to what does not
  // depend on how many they are.
  Status add_up(const Sums& sums, std::span<double> to) {
    const AdafactorStep& step = step_of(*sums.update);
    const std::vector<GradientPart> parts = parts_of_(*sums.update);
    std::vector<PageId> pages;
    for (const GradientPart& part : parts) {
      pages.push_back(part.page);
      if (step.shape.is_vector()) {
        kernels::adafactor_add_to_vector(step, part.values.data(), part.values.size(),
                                         to.data() + part.first);
      }
    }
    if (!step.shape.is_vector()) add_matrices(step, parts, to);
    const auto squares = stream_.squares_on(layout_.tensors()[sums.update->tensor], pages);
    if (squares.ok()) to.back() = squares.value();
    return squares.status();
  }

  void add_matrices(const AdafactorStep& step, std::span<const GradientPart> parts,
                    std::span<double> to) {
    Workers& workers = stream_.workers();
    const std::size_t rows = step.shape.matrices * step.shape.rows;
    workers.run([&](unsigned worker) {
      const WorkShare own_rows = share_of(rows, worker, workers.count());
      const WorkShare own_columns = share_of(step.shape.columns, worker, workers.count());
      for (const GradientPart& part : parts) {
        const float* const values = part.values.data();
        const std::size_t count = part.values.size();
        kernels::adafactor_add_to_rows(step, values, part.first, count,
                                       {own_rows.begin, own_rows.end}, to.data());
        kernels::adafactor_add_to_columns(step, values, part.first, count,
                                          {own_columns.begin, own_columns.end}, to.data() + rows);
      }
    });
  }

  double squares_of_updates(const Update& update, const AdafactorMeasure& measure) {
    double all = 0;
    for (const GradientPart& part : parts_of_(update)) {
      measure.add_updates({.f32 = part.values.data()}, part.first, part.values.size(),
                          stream_.workers(), all);
    }
    return all;
  }

  // Adds by rising rank.
  Status add_over_ranks(std::span<double> own) {
    std::vector<double> all(own.size() * static_cast<std::size_t>(ranks_.size()));
    TACO_RETURN_IF_ERROR(
        all_gather(ranks_, std::as_bytes(own), std::as_writable_bytes(std::span(all))));
    for (std::size_t i = 0; i < own.size(); ++i) {
      own[i] = 0;
      for (std::size_t at = i; at < all.size(); at += own.size()) own[i] += all[at];
    }
    return {};
  }

  Collectives& ranks_;
  const Layout& layout_;
  OptimizerStream& stream_;
  const PartsOf& parts_of_;
  AdafactorMeasures found_;
  Status own_;
};

}  // namespace

bool has_adafactor(std::span<const Update> updates) { return !adafactors(updates).empty(); }

Result<AdafactorMeasures> measure_in_turns(Collectives& ranks, const Layout& layout,
                                           OptimizerStream& stream,
                                           std::span<const Update> updates) {
  const auto turns = dealt(adafactors(updates), ranks.size());
  AdafactorMeasures found;
  std::vector<Parcel> parcels;
  std::vector<std::vector<std::byte>> heard(turns.size());
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const auto& [update, owner] = turns[i];
    const AdafactorMeasure empty(step_of(*update), stream.moments_tier());
    parcels.push_back({owner, empty.bytes()});
    if (owner != ranks.rank()) heard[i].resize(empty.bytes());
  }
  const ExchangeCalls calls = {
      .pack = [&](std::size_t i, std::span<std::byte> to) -> Status {
        const Update& update = *turns[i].first;
        auto measure = stream.measure(update);
        if (!measure.ok()) {
          return measure.status().with_prefix("the optimizer's step ended before '" +
                                              layout.tensors()[update.tensor].name + "': ");
        }
        measure.value().tell(to);
        found.insert_or_assign(update.tensor, std::move(measure).value());
        return {};
      },
      .unpack = [&](std::size_t i, std::size_t from, std::span<const std::byte> bytes) -> Status {
        std::copy(bytes.begin(), bytes.end(), heard[i].begin() + static_cast<std::ptrdiff_t>(from));
        return {};
      },
  };
  TACO_RETURN_IF_ERROR(exchange(ranks, parcels, calls));
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].second == ranks.rank()) continue;
    const Update& update = *turns[i].first;
    AdafactorMeasure measure(step_of(update), stream.moments_tier());
    measure.hear(heard[i]);
    found.insert_or_assign(update.tensor, std::move(measure));
  }
  return found;
}

Result<AdafactorMeasures> measure_parts(Collectives& ranks, const Layout& layout,
                                        OptimizerStream& stream, std::span<const Update> updates,
                                        const PartsOf& parts_of, std::size_t memory) {
  const std::size_t most = memory / sizeof(double) / static_cast<std::size_t>(ranks.size());
  return Parts(ranks, layout, stream, parts_of).run(batches_of(adafactors(updates), most));
}

Status begin_measured(OptimizerStream& stream, const AdafactorMeasures& measures,
                      std::span<Update> updates) {
  for (Update& update : updates) {
    const auto measure = measures.find(update.tensor);
    if (measure == measures.end()) continue;
    TACO_RETURN_IF_ERROR(stream.write_back(update.tensor, measure->second));
    update.measure = &measure->second;
  }
  return {};
}

}  // namespace taco::zerocache
