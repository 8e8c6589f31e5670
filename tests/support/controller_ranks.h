// Controllers of a group whose ranks are threads of the test, and requests with memory of their
// own.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pg/controller/controller.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::testing {

// The memory of one request's tensors: vectors, and outputs as they are asked for.
class RequestMemory final : public pg::controller::Tensors {
 public:
  explicit RequestMemory(std::vector<Bytes> inputs, bool in_place = false,
                         kernels::Dtype dtype = kernels::Dtype::kF32)
      : inputs_(std::move(inputs)),
        outputs_(inputs_.size()),
        shapes_(inputs_.size()),
        in_place_(in_place),
        dtype_(dtype) {}

  std::vector<pg::Piece> inputs() override {
    std::vector<pg::Piece> pieces;
    for (Bytes& each : inputs_) pieces.push_back(piece(each));
    return pieces;
  }
  Result<pg::Piece> output(std::size_t tensor, const pg::controller::Shape& shape) override {
    if (fails_) return Status(Code::kResource, "no memory, says the test");
    shapes_[tensor] = shape;
    if (in_place_) return piece(inputs_[tensor]);
    std::size_t bytes = kernels::size_of(dtype_);
    for (const std::int64_t dimension : shape) bytes *= static_cast<std::size_t>(dimension);
    outputs_[tensor].assign(bytes, std::byte{0xee});
    return piece(outputs_[tensor]);
  }

  const Bytes& result(std::size_t tensor = 0) const {
    return in_place_ ? inputs_[tensor] : outputs_[tensor];
  }
  const Bytes& given(std::size_t tensor = 0) const { return inputs_[tensor]; }
  const pg::controller::Shape& shape(std::size_t tensor = 0) const { return shapes_[tensor]; }
  void fail() { fails_ = true; }

 private:
  std::vector<Bytes> inputs_, outputs_;
  std::vector<pg::controller::Shape> shapes_;
  const bool in_place_;
  const kernels::Dtype dtype_;
  bool fails_ = false;
};

// Tensors that do what a test says when they are asked for their memory.
class UnrulyTensors final : public pg::controller::Tensors {
 public:
  std::function<std::vector<pg::Piece>()> give_inputs;
  std::function<Result<pg::Piece>()> give_output;

  std::vector<pg::Piece> inputs() override { return give_inputs(); }
  Result<pg::Piece> output(std::size_t, const pg::controller::Shape&) override {
    return give_output();
  }
};

// A request that a rank of the test has submitted.
struct Submitted {
  std::shared_ptr<RequestMemory> memory;
  Status refusal;
  std::shared_ptr<pg::controller::Submission> submission;

  // How it has ended; a failure of the test where it does not.
  Status wait(Duration limit = 20 * kSecond) const {
    if (!refusal.ok()) return refusal;
    if (!submission->wait_until(monotonic_now() + limit))
      return Status(Code::kTimeout, "the request has not ended");
    return submission->outcome().status;
  }
  const pg::controller::Outcome& outcome() const { return submission->outcome(); }
  std::vector<float> floats(std::size_t tensor = 0) const {
    const Bytes& bytes = memory->result(tensor);
    std::vector<float> numbers(bytes.size() / sizeof(float));
    if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
};

inline Submitted submit_tensors(pg::controller::Controller& to, int set,
                                pg::controller::Request request,
                                std::shared_ptr<pg::controller::Tensors> tensors) {
  Submitted made;
  auto submission = to.submit(set, std::move(request), std::move(tensors));
  made.refusal = submission.status();
  if (submission.ok()) made.submission = *submission;
  return made;
}

inline Submitted submit(pg::controller::Controller& to, int set, pg::controller::Request request,
                        std::shared_ptr<RequestMemory> memory = nullptr) {
  Submitted made = submit_tensors(to, set, std::move(request), memory);
  made.memory = std::move(memory);
  return made;
}

inline Bytes bytes_of(const std::vector<float>& numbers) {
  Bytes bytes(numbers.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

// A request with one vector of floats.
inline pg::controller::Request request_of(pg::controller::Kind kind, std::string name,
                                          std::int64_t rows) {
  pg::controller::Request request;
  request.kind = kind;
  request.name = std::move(name);
  request.shapes = {{rows}};
  return request;
}

inline Submitted submit_floats(pg::controller::Controller& to, int set,
                               pg::controller::Request request, const std::vector<float>& numbers,
                               bool in_place = false) {
  request.shapes = {{static_cast<std::int64_t>(numbers.size())}};
  auto memory = std::make_shared<RequestMemory>(std::vector<Bytes>{bytes_of(numbers)}, in_place);
  return submit(to, set, std::move(request), std::move(memory));
}

inline Submitted add_set(pg::controller::Controller& to, const std::vector<std::int64_t>& members,
                         const std::string& name = "add") {
  pg::controller::Request request = request_of(pg::controller::Kind::kAddSet, name, 0);
  request.shapes.clear();
  request.ranks = members;
  return submit(to, 0, request);
}

inline Submitted remove_set(pg::controller::Controller& to, int set,
                            const std::string& name = "remove") {
  pg::controller::Request request = request_of(pg::controller::Kind::kRemoveSet, name, 0);
  request.shapes.clear();
  request.root = set;
  return submit(to, 0, request);
}

inline Submitted sum_floats(pg::controller::Controller& to, const std::string& name,
                            const std::vector<float>& numbers, int set = 0) {
  return submit_floats(to, set, request_of(pg::controller::Kind::kAllReduce, name, 0), numbers);
}

class ControllerRanks {
 public:
  explicit ControllerRanks(const RankOptions& options,
                           pg::controller::ControllerOptions controllers = {})
      : ranks_(std::make_unique<RankThreads>(options)) {
    nested_.resize(static_cast<std::size_t>(options.world));
    controllers_.resize(nested_.size());
    for (int rank = 0; rank < options.world; ++rank) {
      const pg::GroupOptions& group = ranks_->group(rank).options();
      controllers.rank = rank;
      controllers.world = options.world;
      controllers.group = group.id;
      nested_[rank] = std::make_shared<pg::NestedGroups>(ranks_->network().stack(rank), group);
      auto made = pg::controller::Controller::start(nested_[rank], controllers);
      EXPECT_TRUE(made.ok()) << made.status().message();
      controllers_[rank] = std::move(made).value();
    }
  }
  // All at once, as they wait for each other.
  ~ControllerRanks() {
    on_threads(size(), [this](int rank) { controllers_[rank].reset(); });
    on_threads(size(), [this](int rank) { (void)nested_[rank]->close(kSecond); });
  }
  ControllerRanks(const ControllerRanks&) = delete;
  ControllerRanks& operator=(const ControllerRanks&) = delete;

  pg::controller::Controller& at(int rank) { return *controllers_[rank]; }
  RankThreads& ranks() { return *ranks_; }
  pg::NestedGroups& nested(int rank) { return *nested_[rank]; }
  int size() const { return static_cast<int>(controllers_.size()); }
  // Calls `body` for every rank on a thread of its own and waits for all of them.
  void run(const std::function<void(int rank, pg::controller::Controller& to)>& body) {
    on_threads(size(), [&](int rank) { body(rank, at(rank)); });
  }

 private:
  std::unique_ptr<RankThreads> ranks_;
  std::vector<std::shared_ptr<pg::NestedGroups>> nested_;
  std::vector<std::unique_ptr<pg::controller::Controller>> controllers_;
};

// Is it a failure of this code, whose text has all of these words?
inline ::testing::AssertionResult says(const Status& status, Code code,
                                       const std::vector<std::string>& words) {
  if (status.code() != code) {
    return ::testing::AssertionFailure()
           << "code " << static_cast<int>(status.code()) << ": " << status.message();
  }
  for (const std::string& word : words) {
    if (status.message().find(word) == std::string::npos)
      return ::testing::AssertionFailure() << "no '" << word << "' in: " << status.message();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace taco::testing
