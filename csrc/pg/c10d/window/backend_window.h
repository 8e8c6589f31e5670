// torch's one-sided window (2.14 on) over a taco group. Registering a tensor makes a group of its
// own over the same ranks (pg/window/window.h): what fails in a window ends that window, and no
// more. Here, calls are checked against what the owner has registered, and turned into operations
// of that group. Any thread; what is collective in torch blocks.
#pragma once

#include "pg/c10d/torch_features.h"

#if TACO_TORCH_SINCE(14)

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Window.hpp>
#include <vector>

#include "pg/c10d/backend.h"

namespace taco::pg {

class BackendWindow final : public c10d::Window {
 public:
  explicit BackendWindow(c10::intrusive_ptr<Backend> backend) : backend_(std::move(backend)) {}
  // Drops what others still write, without asking them.
  ~BackendWindow() override;

  // NOLINTBEGIN(readability-identifier-naming): their names are torch's.
  // The window keeps the memory in any case: others may write at any time until it is deregistered.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  void tensor_deregister() override;
  c10::intrusive_ptr<c10d::Work> put(const at::Tensor& tensor, int64_t dstRank,
                                     int64_t targetOffsetNelems, bool asyncOp,
                                     const c10d::PutOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> signal(int64_t peerRank, bool asyncOp,
                                        const c10d::SignalOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> wait_signal(int64_t peerRank, bool asyncOp,
                                             const c10d::WaitSignalOptions& opts) override;
  at::Tensor map_remote_tensor(int64_t rank) override;
  c10d::WindowAttr get_attr(int64_t peerRank) override;
  // NOLINTEND(readability-identifier-naming)

 private:
  struct Peer {
    std::uint64_t elements = 0;
    c10::ScalarType type = c10::ScalarType::Undefined;
  };
  // A tensor, from its registration until it is deregistered.
  struct Registered {
    std::shared_ptr<Generation> generation;
    std::shared_ptr<Communicator> group;
    at::Tensor tensor;
    std::vector<Peer> peers;  // by rank

    void close();
  };
  using RegisteredPtr = std::shared_ptr<Registered>;

  RegisteredPtr registered() const;
  std::vector<Peer> exchange_records(const Registered& own, std::exception_ptr problem) const;
  c10::intrusive_ptr<c10d::Work> start(const Registered& registered, Translation& translation,
                                       const char* title, std::chrono::milliseconds timeout,
                                       bool async, const std::vector<at::Tensor>& inputs);
  // A signal that is given, or waited for.
  c10::intrusive_ptr<c10d::Work> signalled(Kind kind, const char* title, std::int64_t peer,
                                           bool async, std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<Backend> backend_;
  mutable std::mutex mutex_;  // guards what follows
  RegisteredPtr registered_;
  std::deque<std::weak_ptr<WorkState>> sending_;  // puts and signals that may not have ended
};

}  // namespace taco::pg

#endif
