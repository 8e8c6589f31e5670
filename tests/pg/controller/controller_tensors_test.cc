// Tensors that throw, or that a program changes, while a request is pending: the request ends with
// an error that names it, the others hear of it, and no memory is touched that is not theirs.
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/controller_ranks.h"

namespace taco::pg::controller {
namespace {

using testing::Bytes;
using testing::bytes_of;
using testing::ControllerRanks;
using testing::request_of;
using testing::RequestMemory;
using testing::says;
using testing::submit;
using testing::submit_tensors;
using testing::Submitted;
using testing::sum_floats;
using testing::UnrulyTensors;

constexpr int kRows = 4;

// Every kind that moves data, of kRows floats a rank.
std::vector<Request> requests_of_all_kinds() {
  std::vector<Request> all;
  for (const Kind kind : {Kind::kAllReduce, Kind::kAdasum, Kind::kAllGather, Kind::kBroadcast,
                          Kind::kAllToAll, Kind::kReduceScatter}) {
    all.push_back(request_of(kind, "x", kRows));
    if (kind == Kind::kAllToAll) all.back().splits = {kRows / 2, kRows / 2};
    if (kind == Kind::kBroadcast) all.back().root = 1;
  }
  return all;
}

// Rank 1's tensors are unruly, rank 0's are not. Both must hear of it, rank 1 in these words.
void expect_failure(const Request& request, const std::shared_ptr<UnrulyTensors>& unruly, Code code,
                    const std::vector<std::string>& words) {
  ControllerRanks ranks({.world = 2});
  ranks.run([&](int rank, Controller& to) {
    if (rank == 0) {
      const auto memory =
          std::make_shared<RequestMemory>(std::vector<Bytes>{bytes_of({1, 2, 3, 4})});
      const Status status = submit(to, 0, request, memory).wait();
      EXPECT_FALSE(status.ok()) << name_of(request.kind);
      EXPECT_NE(status.message().find(described(request)), std::string::npos) << status.message();
    } else {
      EXPECT_TRUE(says(submit_tensors(to, 0, request, unruly).wait(), code, words))
          << name_of(request.kind);
    }
    EXPECT_FALSE(sum_floats(to, "later", {1}).wait().ok()) << "they do nothing together any more";
  });
}

class ControllerTensors : public ::testing::Test {
 protected:
  // Well-behaved, unless a test says otherwise.
  std::shared_ptr<UnrulyTensors> made() {
    auto tensors = std::make_shared<UnrulyTensors>();
    tensors->give_inputs = [this] { return std::vector<Piece>{testing::piece(input_)}; };
    tensors->give_output = [this] { return testing::piece(output_); };
    return tensors;
  }

  Bytes input_ = bytes_of({5, 6, 7, 8});
  Bytes output_ = Bytes(2 * kRows * sizeof(float));
};

TEST_F(ControllerTensors, ThatThrowWhenTheyAreReadEndTheirRequestByName) {
  for (const Request& request : requests_of_all_kinds()) {
    const auto unruly = made();
    unruly->give_inputs = []() -> std::vector<Piece> { throw std::runtime_error("no data here"); };
    expect_failure(request, unruly, Code::kAborted, {described(request), "no data here"});
  }
}

TEST_F(ControllerTensors, ThatThrowWhenTheyAreWrittenEndTheirRequestByName) {
  for (const Request& request : requests_of_all_kinds()) {
    const auto unruly = made();
    unruly->give_output = []() -> Result<Piece> { throw std::runtime_error("no room here"); };
    expect_failure(request, unruly, Code::kAborted, {described(request), "no room here"});
  }
}

TEST_F(ControllerTensors, MayThrowAnything) {
  const Request request = request_of(Kind::kAllReduce, "x", kRows);
  const auto unruly = made();
  unruly->give_inputs = []() -> std::vector<Piece> { throw std::bad_alloc(); };
  expect_failure(request, unruly, Code::kResource, {"allreduce 'x'"});
  unruly->give_inputs = []() -> std::vector<Piece> { throw 7; };
  expect_failure(request, unruly, Code::kAborted, {"allreduce 'x'", "no std::exception"});
}

TEST_F(ControllerTensors, ThatWereResizedMeanwhileAreNamed) {
  for (const Request& request : requests_of_all_kinds()) {
    const auto shrunk = made();
    shrunk->give_inputs = [this] { return std::vector<Piece>{{input_.data(), 2 * sizeof(float)}}; };
    expect_failure(request, shrunk, Code::kAborted,
                   {described(request), "has 8 bytes", "is of 16"});
    const auto gone = made();
    gone->give_inputs = [] { return std::vector<Piece>{{nullptr, kRows * sizeof(float)}}; };
    expect_failure(request, gone, Code::kAborted, {described(request), "no memory"});
    const auto without_room = made();
    without_room->give_output = [this]() -> Result<Piece> {
      return Piece{output_.data(), sizeof(float)};
    };
    expect_failure(request, without_room, Code::kAborted, {described(request), "has 4 bytes"});
  }
}

TEST_F(ControllerTensors, ThatAreMoreOrFewerThanTheyWereAreNamed) {
  const Request request = request_of(Kind::kAllReduce, "x", kRows);
  const auto unruly = made();
  unruly->give_inputs = [] { return std::vector<Piece>{}; };
  expect_failure(request, unruly, Code::kAborted, {"allreduce 'x'", "0 for 1 shapes"});
}

// Several requests may run in one buffer: the one that fails is named to the others too.
TEST_F(ControllerTensors, OfSeveralRequestsInOneBufferNameTheirOwn) {
  ControllerRanks ranks({.world = 2});
  const auto unruly = made();
  unruly->give_inputs = []() -> std::vector<Piece> { throw std::runtime_error("no data here"); };
  std::vector<Submitted> first;
  for (const char* const name : {"a", "b"}) first.push_back(sum_floats(ranks.at(0), name, {1, 2}));
  const Submitted good = sum_floats(ranks.at(1), "a", {1, 2});
  const Submitted bad =
      submit_tensors(ranks.at(1), 0, request_of(Kind::kAllReduce, "b", 2), unruly);
  EXPECT_TRUE(says(bad.wait(), Code::kAborted, {"allreduce 'b'", "no data here"}));
  EXPECT_FALSE(first[1].wait().ok());
  // The other may have run before.
  for (const Submitted& each : {first[0], good}) {
    if (each.wait().ok()) continue;
    EXPECT_TRUE(says(each.wait(), Code::kAborted, {"allreduce 'a'", "allreduce 'b'"}));
  }
}

}  // namespace
}  // namespace taco::pg::controller
