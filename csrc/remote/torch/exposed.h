// Tensors that an endpoint has registered, and transfers with them, as Python holds them: an
// Endpoint (remote/endpoint.h) with torch's memory. Any thread, without the GIL. A copy in a forked
// child takes no lock, which it may find held for good, and gives back nothing of its parent's.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fork.h"
#include "edge/stack_use.h"
#include "remote/endpoint.h"
#include "remote/torch/endpoint_address.h"

namespace taco::remote {

// A tensor from its registration until it is unregistered, or its endpoint has closed.
struct ExposedTensor {
  at::Tensor tensor;  // of the same memory, whatever becomes of the program's
  std::byte* memory = nullptr;
  std::uint64_t bytes = 0;
  Handle handle;
  std::atomic<bool> is_registered{true};           // changed under the mutex
  std::mutex mutex;                                // guards what follows
  std::vector<std::weak_ptr<Transfer>> transfers;  // with it as this end's memory
};
using ExposedTensorPtr = std::shared_ptr<ExposedTensor>;

class TensorEndpoint {
 public:
  static Result<std::shared_ptr<TensorEndpoint>> open();
  explicit TensorEndpoint(std::shared_ptr<edge::StackUse> use) : use_(std::move(use)) {}
  ~TensorEndpoint();  // drop()

  std::string address() const;  // with the process's addresses of this moment
  Status connect(const std::string& peer);
  bool connected() const { return endpoint_->connected(); }
  std::string describe_peer() const { return endpoint_->describe_peer(); }

  // ValueError for tensors that others cannot write into.
  Result<ExposedTensorPtr> add(const at::Tensor& tensor);
  // kInvalidArgument while transfers that were started here use it.
  Status remove(const ExposedTensorPtr& exposed, Time deadline);
  Result<TransferPtr> start(Action action, const ExposedTensorPtr& local, std::uint64_t offset,
                            std::uint64_t bytes, const Handle& remote);
  // Gives all memory back.
  Status close(Time deadline);
  // close() in a moment: what is under way fails.
  void drop();

 private:
  void let_go(ExposedTensor& exposed);
  bool is_copy() const { return generation_ != fork_generation(); }

  const std::uint32_t generation_ = fork_generation();
  std::shared_ptr<edge::StackUse> use_;
  EndpointAddress own_;
  std::shared_ptr<Endpoint> endpoint_;
  std::mutex mutex_;  // guards what follows
  std::vector<ExposedTensorPtr> exposed_;
};

}  // namespace taco::remote
