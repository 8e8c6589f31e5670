#include "support/negotiating_ranks.h"

#include <string_view>
#include <utility>

namespace taco::pg::controller {
namespace {

// "" or how rank 0's response differs from another's in what must be the same.
std::string difference_of(const Response& a, const Response& b) {
  if (a.requests.size() != b.requests.size()) return "numbers of requests";
  for (std::size_t i = 0; i < a.requests.size(); ++i) {
    if (a.requests[i].name != b.requests[i].name) return "names";
  }
  if (a.error.code() != b.error.code() || a.error.message() != b.error.message()) return "errors";
  if (a.rows != b.rows) return "rows";
  if (a.last_joined != b.last_joined || a.joined != b.joined) return "who joined";
  return "";
}

}  // namespace

NegotiatingRanks::NegotiatingRanks(int world, NegotiationOptions options) {
  options.world = world;
  for (options.rank = 0; options.rank < world; ++options.rank) {
    ranks_.push_back(std::make_unique<Negotiation>(options));
  }
}

void NegotiatingRanks::submit(const Request& request) {
  for (auto& rank : ranks_) {
    if (Status status = rank->submit(request); !status.ok()) fail(status.message());
  }
}

void NegotiatingRanks::fail(const std::string& text) {
  if (failure_.empty()) {
    failure_ = "round " + std::to_string(ranks_[0]->round()) + ": " + text;
  }
}

std::vector<std::vector<Response>> NegotiatingRanks::round() {
  std::vector<std::uint64_t> combined;
  for (auto& rank : ranks_) {
    const std::vector<std::uint64_t> bits = rank->bits();
    if (combined.empty()) combined.assign(bits.size(), ~std::uint64_t{0});
    if (combined.size() != bits.size()) {
      fail("rows of " + std::to_string(combined.size()) + " and " + std::to_string(bits.size()));
      return std::vector<std::vector<Response>>(ranks_.size());
    }
    for (std::size_t i = 0; i < bits.size(); ++i) combined[i] &= bits[i];
  }
  in_between();
  if (!hear_words(combined)) return std::vector<std::vector<Response>>(ranks_.size());
  std::vector<std::vector<Response>> responses;
  for (auto& rank : ranks_) responses.push_back(rank->responses());
  compare(responses);
  return responses;
}

bool NegotiatingRanks::hear_words(const std::vector<std::uint64_t>& combined) {
  std::vector<std::string> words;
  for (auto& rank : ranks_) {
    const bool follow = rank->words_follow(combined);
    if (rank != ranks_[0] && follow != words_followed_) fail("some ranks expect words");
    words_followed_ = follow;
  }
  if (!words_followed_) return true;
  for (auto& rank : ranks_) words.push_back(rank->words());
  const std::vector<std::string_view> views(words.begin(), words.end());
  for (auto& rank : ranks_) {
    if (Status status = rank->hear(views); !status.ok()) fail(status.message());
  }
  return failure_.empty();
}

void NegotiatingRanks::compare(const std::vector<std::vector<Response>>& responses) {
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank) + " and rank 0 differ in ";
    if (ranks_[rank]->digest() != ranks_[0]->digest()) fail(who + "their tables");
    if (ranks_[rank]->joined() != ranks_[0]->joined()) fail(who + "who has joined");
    if (ranks_[rank]->shutdown_asked() != ranks_[0]->shutdown_asked()) fail(who + "the shutdown");
    if (responses[rank].size() != responses[0].size()) {
      fail(who + "how much runs");
      continue;
    }
    for (std::size_t i = 0; i < responses[0].size(); ++i) {
      const std::string difference = difference_of(responses[0][i], responses[rank][i]);
      if (!difference.empty()) fail(who + difference);
    }
  }
}

Request make_request(Kind kind, std::string name, std::vector<Shape> shapes) {
  Request request;
  request.kind = kind;
  request.name = std::move(name);
  request.shapes = std::move(shapes);
  return request;
}

}  // namespace taco::pg::controller
