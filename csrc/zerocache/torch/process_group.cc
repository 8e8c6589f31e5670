#include "zerocache/torch/process_group.h"

#include <ATen/ops/from_blob.h>

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "edge/signals.h"
#include "edge/status_of.h"

namespace taco::zerocache {
namespace {

// torch's own backends have one type of exception for everything, and a text.
Code code_of(const std::string& text) {
  for (const char* words : {"Connection closed by peer", "Connection reset", "Broken pipe"}) {
    if (text.find(words) != std::string::npos) return Code::kPeerLost;
  }
  if (text.find("imed out") != std::string::npos) return Code::kTimeout;
  return Code::kResource;
}

Status failure(const std::exception_ptr& error) {
  Status status = status_of(error, Code::kInternal);
  if (status.code() != Code::kInternal) return status;
  return Status(code_of(status.message()), "the group of processes failed: " + status.message());
}

at::Tensor tensor_over(std::byte* bytes, std::size_t count) {
  return at::from_blob(bytes, {static_cast<std::int64_t>(count)}, at::kByte);
}

at::Tensor tensor_over(float* values, std::size_t count) {
  return at::from_blob(values, {static_cast<std::int64_t>(count)}, at::kFloat);
}

// A call that others have not made by then, they may never make.
constexpr std::chrono::milliseconds kPoll(5);
constexpr int kPolls = 400;

class Waiting : public Collectives::Work {
 public:
  explicit Waiting(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() override {
    if (work_) static_cast<void>(wait());
  }

  void abandon(std::shared_ptr<const void> memory) override {
    for (int i = 0; i < kPolls && !work_->isCompleted(); ++i) std::this_thread::sleep_for(kPoll);
    if (work_->isCompleted()) return;
    // The group may still write there, whenever it ends.
    static auto& left =
        *new std::vector<std::pair<std::shared_ptr<const void>, c10::intrusive_ptr<c10d::Work>>>();
    left.emplace_back(std::move(memory), std::move(work_));
  }

  Status wait() override {
    const c10::intrusive_ptr<c10d::Work> work = std::move(work_);
    if (!work) return {};
    const RaisedAfterwards lent;  // the group has the memory until this is over
    try {
      work->wait();
      return {};
    } catch (...) {
      return failure(std::current_exception());
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;  // null once it was waited for
};

class ProcessGroup : public Collectives {
 public:
  explicit ProcessGroup(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }

  Result<std::unique_ptr<Work>> all_gather(std::span<const std::byte> own,
                                           std::span<std::byte> all) override {
    // It is only read.
    at::Tensor from = tensor_over(const_cast<std::byte*>(own.data()), own.size());
    at::Tensor to = tensor_over(all.data(), all.size());
    c10d::AllgatherOptions options;
    options.asyncOp = true;
    return begun([&] { return backend_->_allgather_base(to, from, options); });
  }

  // Groups that have no such call, which they all say before they begin anything, gather instead.
  Result<std::unique_ptr<Work>> reduce_scatter(std::span<const float> all,
                                               std::span<float> own) override {
    if (!reduces_) return Collectives::reduce_scatter(all, own);
    at::Tensor from = tensor_over(const_cast<float*>(all.data()), all.size());
    at::Tensor to = tensor_over(own.data(), own.size());
    c10d::ReduceScatterOptions options;
    options.asyncOp = true;
    auto work = begun([&] { return backend_->_reduce_scatter_base(to, from, options); });
    if (work.ok() || work.status().message().find("does not support") == std::string::npos) {
      return work;
    }
    reduces_ = false;
    return Collectives::reduce_scatter(all, own);
  }

 private:
  template <class Call>
  static Result<std::unique_ptr<Work>> begun(const Call& call) {
    try {
      return std::unique_ptr<Work>(std::make_unique<Waiting>(call()));
    } catch (...) {
      return failure(std::current_exception());
    }
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
  bool reduces_ = true;
};

}  // namespace

std::unique_ptr<Collectives> collectives_of(c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_unique<ProcessGroup>(std::move(backend));
}

bool waits_here() { return RaisedAfterwards::is_here(); }

}  // namespace taco::zerocache
