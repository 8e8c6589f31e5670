#include "pg/controller/agreement.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/names.h"

namespace taco::pg::controller {
namespace {

constexpr std::size_t kMaxSides = 8;  // shown in a text

bool has_op(Kind kind) { return kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }

std::string list_text(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) append_name(text, std::to_string(number));
  return "[" + text + "]";
}

// The rows that one rank gets of each.
Status check_received(const Request& request, std::size_t tensor,
                      const std::vector<std::int64_t>& rows, const std::string& who) {
  std::int64_t sum = 0;
  bool fits = true;
  for (const std::int64_t count : rows) fits = fits && !__builtin_add_overflow(sum, count, &sum);
  if (fits && bytes_of_rows(request, tensor, sum)) return {};
  std::vector<std::int64_t> shown = rows;
  shown.resize(std::min(rows.size(), kMaxSides));
  const std::size_t left = rows.size() - shown.size();
  return refuse_request(request, who + " would get " + list_text(shown) +
                                     (left > 0 ? " and " + std::to_string(left) + " more" : "") +
                                     " rows from the ranks, which is more than any memory holds");
}

std::string real_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string tensor_text(const Request& request, std::size_t tensor) {
  std::string shape = shape_text(request.shapes[tensor]);
  if (has_own_rows(request.kind)) {
    Shape after_first(request.shapes[tensor].begin() + 1, request.shapes[tensor].end());
    shape = after_first.empty() ? "[*]" : "[*, " + shape_text(after_first).substr(1);
  }
  return std::string(kernels::name_of(request.dtype)) + " " + shape;
}

// A property in which all must be alike, as a text that is alike just where the property is.
struct Aspect {
  std::string what;  // "shape"
  bool (*alike)(const Request& a, const Request& b, std::size_t tensor);
  std::string (*text)(const Request& request, std::size_t tensor);
  std::size_t tensor = 0;
};

bool all_alike(const std::vector<Variant>& variants, const Aspect& aspect) {
  return std::ranges::all_of(variants, [&](const Variant& each) {
    return aspect.alike(variants[0].request, each.request, aspect.tensor);
  });
}

// The ranks of each side, sides in the order of their first ranks.
std::string sides_text(const std::vector<Variant>& variants, const Aspect& aspect) {
  std::vector<std::pair<std::string, std::vector<int>>> sides;
  for (const Variant& variant : variants) {
    const std::string text = aspect.text(variant.request, aspect.tensor);
    auto side = std::ranges::find(sides, text, [](const auto& each) { return each.first; });
    if (side == sides.end()) side = sides.insert(sides.end(), {text, {}});
    side->second.insert(side->second.end(), variant.ranks.begin(), variant.ranks.end());
  }
  for (auto& side : sides) std::ranges::sort(side.second);
  std::ranges::sort(sides, {}, [](const auto& side) { return side.second[0]; });
  std::string text;
  for (std::size_t i = 0; i < std::min(sides.size(), kMaxSides); ++i) {
    text += (i == 0 ? "" : "; ") + ranks_text(sides[i].second) + ": " + sides[i].first;
  }
  if (sides.size() > kMaxSides)
    text += "; and " + std::to_string(sides.size() - kMaxSides) + " more";
  return text;
}

Status mismatch_of(const std::vector<Variant>& variants, const Aspect& aspect) {
  const Request& first = variants[0].request;
  return Status(Code::kMismatch, "the ranks submitted '" + printable(first.name) +
                                     "' with different " + aspect.what + ". " +
                                     sides_text(variants, aspect));
}

const Aspect& kind_aspect() {
  static const Aspect aspect{
      .what = "operations",
      .alike = [](const Request& a, const Request& b, std::size_t) { return a.kind == b.kind; },
      .text = [](const Request& request, std::size_t) -> std::string {
        return name_of(request.kind);
      }};
  return aspect;
}

const Aspect& count_aspect() {
  static const Aspect aspect{
      .what = "numbers of tensors",
      .alike = [](const Request& a, const Request& b,
                  std::size_t) { return a.shapes.size() == b.shapes.size(); },
      .text = [](const Request& request,
                 std::size_t) { return count_text(request.shapes.size(), "tensor"); }};
  return aspect;
}

bool same_trailing(const Shape& a, const Shape& b) {
  return a.size() == b.size() && std::equal(a.begin() + 1, a.end(), b.begin() + 1);
}

Aspect tensor_aspect(const Request& request, std::size_t tensor) {
  Aspect aspect{.what = has_own_rows(request.kind) ? "dimensions after the first, or dtypes"
                                                   : "shapes or dtypes",
                .alike =
                    [](const Request& a, const Request& b, std::size_t t) {
                      if (a.dtype != b.dtype) return false;
                      return has_own_rows(a.kind) ? same_trailing(a.shapes[t], b.shapes[t])
                                                  : a.shapes[t] == b.shapes[t];
                    },
                .text = tensor_text,
                .tensor = tensor};
  if (request.shapes.size() > 1) {
    aspect.what +=
        " of tensor " + std::to_string(tensor) + " of " + std::to_string(request.shapes.size());
  }
  return aspect;
}

// Settings beside the tensors, as far as the kind has them.
std::vector<Aspect> setting_aspects(Kind kind) {
  std::vector<Aspect> aspects;
  const auto add = [&](const char* what, auto alike, auto text) {
    aspects.push_back({.what = what, .alike = alike, .text = text});
  };
  if (has_op(kind)) {
    add(
        "ops", [](const Request& a, const Request& b, std::size_t) { return a.op == b.op; },
        [](const Request& request, std::size_t) -> std::string {
          return kernels::name_of(request.op);
        });
  }
  if (kind == Kind::kBroadcast || kind == Kind::kRemoveSet) {
    add(
        kind == Kind::kBroadcast ? "roots" : "process sets",
        [](const Request& a, const Request& b, std::size_t) { return a.root == b.root; },
        [](const Request& request, std::size_t) {
          return (request.kind == Kind::kBroadcast ? "root " : "process set ") +
                 std::to_string(request.root);
        });
  }
  if (reduces(kind)) {
    add(
        "factors",
        [](const Request& a, const Request& b, std::size_t) {
          return a.prescale == b.prescale && a.postscale == b.postscale;
        },
        [](const Request& request, std::size_t) {
          return "prescale " + real_text(request.prescale) + ", postscale " +
                 real_text(request.postscale);
        });
  }
  if (kind == Kind::kAddSet) {
    add(
        "ranks", [](const Request& a, const Request& b, std::size_t) { return a.ranks == b.ranks; },
        [](const Request& request, std::size_t) { return list_text(request.ranks); });
  }
  return aspects;
}

}  // namespace

Status agreement_of(const std::vector<Variant>& variants) {
  if (variants.size() < 2) return {};
  const Request& first = variants[0].request;
  if (!all_alike(variants, kind_aspect())) return mismatch_of(variants, kind_aspect());
  if (!all_alike(variants, count_aspect())) return mismatch_of(variants, count_aspect());
  for (std::size_t t = 0; t < first.shapes.size(); ++t) {
    const Aspect aspect = tensor_aspect(first, t);
    if (!all_alike(variants, aspect)) return mismatch_of(variants, aspect);
  }
  for (const Aspect& aspect : setting_aspects(first.kind)) {
    if (!all_alike(variants, aspect)) return mismatch_of(variants, aspect);
  }
  return {};
}

std::vector<std::vector<std::int64_t>> rows_of(const std::vector<Variant>& variants, int world) {
  const Request& first = variants[0].request;
  if (!has_own_rows(first.kind)) return {};
  const auto ranks = static_cast<std::size_t>(world);
  if (first.kind == Kind::kAllToAll) {
    std::vector<std::vector<std::int64_t>> rows(ranks);
    for (const Variant& variant : variants) {
      for (const int rank : variant.ranks) {
        rows[static_cast<std::size_t>(rank)] = variant.request.splits;
      }
    }
    return rows;
  }
  std::vector<std::vector<std::int64_t>> rows(first.shapes.size(),
                                              std::vector<std::int64_t>(ranks));
  for (const Variant& variant : variants) {
    for (std::size_t t = 0; t < rows.size(); ++t) {
      for (const int rank : variant.ranks) {
        rows[t][static_cast<std::size_t>(rank)] = variant.request.shapes[t][0];
      }
    }
  }
  return rows;
}

Status check_rows(const Request& request, const std::vector<std::vector<std::int64_t>>& rows) {
  if (request.kind == Kind::kAllGather) {
    for (std::size_t t = 0; t < rows.size(); ++t) {
      TACO_RETURN_IF_ERROR(check_received(request, t, rows[t], "each rank"));
    }
  } else if (request.kind == Kind::kAllToAll) {
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      std::vector<std::int64_t> received;
      received.reserve(rows.size());
      for (const std::vector<std::int64_t>& sent : rows) received.push_back(sent[rank]);
      TACO_RETURN_IF_ERROR(check_received(request, 0, received, "rank " + std::to_string(rank)));
    }
  }
  return {};
}

bool zeros_can_stand(const Request& request) {
  return request.kind == Kind::kAllReduce &&
         (request.op == kernels::ReduceOp::kSum || request.op == kernels::ReduceOp::kAvg);
}

Status failure_by_join(const Request& request, const std::vector<int>& joined) {
  std::string what = name_of(request.kind);
  if (request.kind == Kind::kAllReduce) what += std::string(" by ") + kernels::name_of(request.op);
  return Status(Code::kMismatch,
                what + " of '" + printable(request.name) + "' is not possible while " +
                    ranks_text(joined) + (joined.size() == 1 ? " has" : " have") +
                    " joined: zeros can stand for them only in an allreduce by SUM or AVG");
}

std::vector<int> ranks_in(const std::vector<bool>& members) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string list;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last == i + 1) last = i;  // two are written as two
    append_name(list,
                std::to_string(ranks[i]) + (last == i ? "" : "-" + std::to_string(ranks[last])));
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + list;
}

std::string named_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) append_name(text, std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string shape_text(const Shape& shape) { return list_text(shape); }

}  // namespace taco::pg::controller
