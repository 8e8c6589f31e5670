#include "pg/controller/fusion.h"

#include <algorithm>
#include <utility>

namespace taco::pg::controller {
namespace {

// A response to which more may be added.
struct OpenResponse {
  const Agreed* first = nullptr;
  std::size_t index = 0;
  std::uint64_t bytes = 0;
};

// A plan before anything is moved: the response of each request, and how many each response has,
// so that its memory is taken at once.
struct Grouping {
  std::vector<std::size_t> response_of;
  std::vector<std::size_t> counts;
};

bool can_fuse(const Agreed& agreed) {
  return agreed.request.kind == Kind::kAllReduce && agreed.error.ok();
}

bool run_alike(const Agreed& a, const Agreed& b) {
  return a.request.dtype == b.request.dtype && a.request.op == b.request.op &&
         a.request.prescale == b.request.prescale && a.request.postscale == b.request.postscale &&
         a.zeros == b.zeros;
}

Grouping group_agreed(const std::vector<Agreed>& agreed, std::uint64_t fusion_bytes) {
  Grouping grouping;
  grouping.response_of.reserve(agreed.size());
  std::vector<OpenResponse> open;
  for (const Agreed& each : agreed) {
    const auto response = open.empty() || !can_fuse(each)
                              ? open.end()
                              : std::ranges::find_if(open, [&](const OpenResponse& other) {
                                  return run_alike(*other.first, each);
                                });
    const bool is_known = response != open.end();
    if (is_known && each.bytes <= fusion_bytes - response->bytes) {
      response->bytes += each.bytes;
      ++grouping.counts[response->index];
      grouping.response_of.push_back(response->index);
      continue;
    }
    const OpenResponse next{&each, grouping.counts.size(), each.bytes};
    grouping.response_of.push_back(next.index);
    grouping.counts.push_back(1);
    if (!can_fuse(each) || fusion_bytes == 0 || each.bytes > fusion_bytes) continue;
    if (is_known) {
      *response = next;
    } else {
      open.push_back(next);
    }
  }
  return grouping;
}

void begin_response(Response& response, Agreed& first, int rank) {
  const std::vector<int>& zeros = first.zeros;
  response.error = std::move(first.error);
  response.rows = std::move(first.rows);
  response.last_joined = first.last_joined;
  response.joined = static_cast<int>(zeros.size());
  response.stands_for_joined = std::ranges::find(zeros, rank) != zeros.end();
}

}  // namespace

std::vector<Response> fuse(std::vector<Agreed>& agreed, std::uint64_t fusion_bytes, int rank) {
  const Grouping grouping = group_agreed(agreed, fusion_bytes);
  std::vector<Response> responses(grouping.counts.size());
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    Response& response = responses[grouping.response_of[i]];
    if (response.requests.empty()) {
      response.requests.reserve(grouping.counts[grouping.response_of[i]]);
      begin_response(response, agreed[i], rank);
    }
    response.requests.push_back(std::move(agreed[i].request));
  }
  return responses;
}

}  // namespace taco::pg::controller
