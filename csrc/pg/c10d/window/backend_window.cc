#include "pg/c10d/window/backend_window.h"

#if TACO_TORCH_SINCE(14)

#include <ATen/core/LegacyTypeDispatch.h>

#include <array>
#include <cstring>
#include <utility>

#include "edge/errors.h"
#include "edge/exposed_memory.h"
#include "edge/without_gil.h"
#include "pg/c10d/backend_tensors.h"

namespace taco::pg {
namespace {

constexpr Duration kWindowLinger = kSecond;
// Far from the numbers of operations, by which other groups of a group are named.
constexpr std::uint64_t kWindowIds = 0x77'69'6e'64'6f'77'73;

// Every rank tells this of its tensor when all register.
struct WindowRecord {
  std::uint64_t is_usable = 0, elements = 0, type = 0;
};

void check_memory(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "taco: a window needs a tensor");
  require_cpu(tensor, "new_window");
  edge::check_exposable(tensor, "a window");
}

}  // namespace

// Another thread may be at a call of this window: what it uses stays, and its call fails.
void BackendWindow::Registered::close() {
  const Status end =
      group->close_window(Status(Code::kAborted, "the window was deregistered or destroyed"));
  group->close_when_idle(kWindowLinger);
  if (!end.ok()) {
    new at::Tensor(tensor);  // an engine that hangs may yet write there
  } else if (tensor.defined()) {
    edge::release_storage(tensor);
  }
}

BackendWindow::~BackendWindow() {
  const WithoutGil others_run;
  if (registered_ != nullptr) registered_->close();
}

BackendWindow::RegisteredPtr BackendWindow::registered() const {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(registered_ != nullptr,
              "taco: this window is not registered: call tensor_register() on all ranks first");
  return registered_;
}

void BackendWindow::tensor_register(const at::Tensor& tensor, bool /*owning*/) {
  const WithoutGil others_run;
  {
    std::lock_guard lock(mutex_);
    TORCH_CHECK(registered_ == nullptr,
                "taco: double registration: this window has a tensor already; call "
                "tensor_deregister() on all ranks first");
  }
  auto made = std::make_shared<Registered>();
  made->generation = backend_->generation();
  std::exception_ptr problem;
  std::optional<WindowMemory> memory;
  try {
    check_memory(tensor);
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    made->tensor = tensor.detach();  // of the same memory, whatever becomes of the caller's
    memory = WindowMemory{piece_of(made->tensor), movement_dtype(tensor.scalar_type())};
  } catch (...) {
    problem = std::current_exception();
    memory = WindowMemory{};
  }
  // Others write as soon as they know of this rank: the window is there before.
  const std::uint64_t number = made->generation->next_window();
  const std::uint64_t parent = made->generation->options().id;
  const std::string suffix = "/window " + std::to_string(number);
  made->group = value_or_raise(made->generation->nested()->open(
      NestedGroups::id_of(NestedGroups::id_of(parent, kWindowIds), number),
      made->generation->nested()->child_of(parent), suffix, memory));
  if (!problem) edge::fix_storage(made->tensor);
  try {
    made->peers = exchange_records(*made, problem);
  } catch (...) {
    made->close();
    throw;
  }
  std::lock_guard lock(mutex_);
  registered_ = std::move(made);
}

// All ranks tell each other of their tensors. Where one has none that can be used, all fail.
std::vector<BackendWindow::Peer> BackendWindow::exchange_records(const Registered& own,
                                                                 std::exception_ptr problem) const {
  const int world = own.group->options().world;
  WindowRecord record;
  if (!problem) {
    record = {1, static_cast<std::uint64_t>(own.tensor.numel()),
              static_cast<std::uint64_t>(own.tensor.scalar_type())};
  }
  const auto options = at::TensorOptions().dtype(c10::kByte).device(c10::kCPU);
  const at::Tensor mine = at::empty({static_cast<int64_t>(sizeof record)}, options);
  const at::Tensor all = at::empty({world * static_cast<int64_t>(sizeof record)}, options);
  std::memcpy(mine.data_ptr(), &record, sizeof record);
  Translation call(Kind::kAllGather, "new_window");
  call.add_input(mine);
  call.add_output_blocks(all, world);
  backend_
      ->launch_in(own.group, *own.generation, call,
                  {c10d::OpType::UNKNOWN, nullptr, c10d::kUnsetTimeout, false}, {}, {})
      ->wait();
  if (problem) std::rethrow_exception(problem);
  std::vector<Peer> peers;
  for (int rank = 0; rank < world; ++rank) {
    WindowRecord told;
    std::memcpy(&told, static_cast<const std::byte*>(all.const_data_ptr()) + rank * sizeof told,
                sizeof told);
    const bool is_known = told.type < static_cast<std::uint64_t>(c10::ScalarType::NumOptions);
    if (told.is_usable == 0 || !is_known) {
      raise(Status(Code::kMismatch, "'" + own.group->options().name + "': rank " +
                                        std::to_string(rank) +
                                        " gave a tensor that cannot be a window; its own error "
                                        "says why"));
    }
    peers.push_back({told.elements, static_cast<c10::ScalarType>(told.type)});
  }
  return peers;
}

void BackendWindow::tensor_deregister() {
  const WithoutGil others_run;
  RegisteredPtr last = registered();
  std::deque<std::weak_ptr<WorkState>> sending;
  {
    std::lock_guard lock(mutex_);
    sending.swap(sending_);
    registered_.reset();
  }
  try {
    // Puts of this rank are under way before the others may close their windows.
    for (const auto& weak : sending)
      if (const WorkStatePtr state = weak.lock()) state->wait_and_hear_signals(kNever);
    Translation call(Kind::kBarrier, "tensor_deregister");
    backend_
        ->launch_in(last->group, *last->generation, call,
                    {c10d::OpType::BARRIER, nullptr, c10d::kUnsetTimeout, false}, {}, {})
        ->wait();
  } catch (...) {
    last->close();
    throw;
  }
  last->close();
}

c10::intrusive_ptr<c10d::Work> BackendWindow::start(const Registered& registered,
                                                    Translation& translation, const char* title,
                                                    std::chrono::milliseconds timeout, bool async,
                                                    const std::vector<at::Tensor>& inputs) {
  const bool sends = translation.spec.kind != Kind::kWaitSignal;
  const WorkStatePtr state = translation.state;
  auto work = backend_->launch_in(registered.group, *registered.generation, translation,
                                  {c10d::OpType::UNKNOWN, title, timeout, async}, inputs, {});
  if (sends && async) {
    std::lock_guard lock(mutex_);
    while (!sending_.empty()) {
      const WorkStatePtr oldest = sending_.front().lock();
      if (oldest && !oldest->operations_done()) break;
      sending_.pop_front();
    }
    sending_.push_back(state);
  }
  if (!async) work->wait();
  return work;
}

c10::intrusive_ptr<c10d::Work> BackendWindow::put(const at::Tensor& tensor, int64_t dstRank,
                                                  int64_t targetOffsetNelems, bool asyncOp,
                                                  const c10d::PutOptions& opts) {
  const WithoutGil others_run;
  const RegisteredPtr here = registered();
  backend_->check_root(dstRank, "put");
  require_cpu(tensor, "put");
  const Peer& peer = here->peers[dstRank];
  TORCH_CHECK(tensor.scalar_type() == peer.type, "taco: put: the tensor's dtype ",
              tensor.scalar_type(), " does not match the window of rank ", dstRank, ", which is ",
              peer.type, ": convert the tensor");
  TORCH_CHECK(targetOffsetNelems >= 0, "taco: put: the target offset must be nonnegative, got ",
              targetOffsetNelems);
  const auto offset = static_cast<std::uint64_t>(targetOffsetNelems);
  const auto elements = static_cast<std::uint64_t>(tensor.numel());
  TORCH_CHECK(offset <= peer.elements && elements <= peer.elements - offset,
              "taco: put: ", elements, " elements at offset ", offset,
              " exceeds the window size of rank ", dstRank, ", ", peer.elements, " elements");
  Translation call(Kind::kPut, "put");
  call.add_input(tensor);
  call.spec.dtype = movement_dtype(tensor.scalar_type());
  call.spec.root = static_cast<int>(dstRank);
  call.spec.offset = offset * tensor.element_size();
  return start(*here, call, "taco:put", opts.timeout, asyncOp, {tensor});
}

c10::intrusive_ptr<c10d::Work> BackendWindow::signal(int64_t peerRank, bool asyncOp,
                                                     const c10d::SignalOptions& opts) {
  return signalled(Kind::kSignal, "taco:signal", peerRank, asyncOp, opts.timeout);
}

c10::intrusive_ptr<c10d::Work> BackendWindow::wait_signal(int64_t peerRank, bool asyncOp,
                                                          const c10d::WaitSignalOptions& opts) {
  return signalled(Kind::kWaitSignal, "taco:wait_signal", peerRank, asyncOp, opts.timeout);
}

c10::intrusive_ptr<c10d::Work> BackendWindow::signalled(Kind kind, const char* title,
                                                        std::int64_t peer, bool async,
                                                        std::chrono::milliseconds timeout) {
  const WithoutGil others_run;
  const RegisteredPtr here = registered();
  backend_->check_root(peer, name_of(kind));
  Translation call(kind, name_of(kind));
  call.spec.root = static_cast<int>(peer);
  return start(*here, call, title, timeout, async, {});
}

at::Tensor BackendWindow::map_remote_tensor(int64_t rank) {
  const RegisteredPtr here = registered();
  backend_->check_root(rank, "map_remote_tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(
      rank == backend_->getRank(), "taco: map_remote_tensor: the window of rank ", rank,
      " is memory of another process, and no process sees into another's; a rank can map its own, "
      "rank ",
      backend_->getRank(), ". Let rank ", rank, " put what is needed here.");
  return here->tensor;
}

c10d::WindowAttr BackendWindow::get_attr(int64_t peerRank) {
  (void)registered();
  backend_->check_root(peerRank, "get_attr");
  return {peerRank == backend_->getRank() ? c10d::WindowAccessType::UNIFIED
                                          : c10d::WindowAccessType::SEPARATE};
}

c10::intrusive_ptr<c10d::Window> Backend::new_window(const std::optional<at::Tensor>& tensor) {
  (void)generation();
  auto window = c10::make_intrusive<BackendWindow>(
      c10::intrusive_ptr<Backend>::unsafe_reclaim_from_nonowning(this));
  if (tensor) window->tensor_register(*tensor, true);
  return window;
}

}  // namespace taco::pg

#endif
