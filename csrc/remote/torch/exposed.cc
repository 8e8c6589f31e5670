#include "remote/torch/exposed.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

#include "base/random.h"
#include "edge/exposed_memory.h"
#include "edge/rendezvous.h"
#include "edge/without_gil.h"

namespace taco::remote {

Result<std::shared_ptr<TensorEndpoint>> TensorEndpoint::open() {
  Result<std::shared_ptr<edge::StackUse>> use = edge::StackUse::take("", {"transport", 1, 0});
  if (!use.ok()) return use.status();
  auto made = std::make_shared<TensorEndpoint>(std::move(use).value());
  Result<edge::Hello> hello = edge::hello_of(*made->use_, {});
  if (!hello.ok()) return hello.status();
  made->own_.process = std::move(hello).value();
  made->own_.endpoint = harp::group_id(kRemoteMemory, random_value<std::uint64_t>());
  auto endpoint = Endpoint::open(made->use_->stack(), made->own_.endpoint);
  if (!endpoint.ok()) return endpoint.status();
  made->endpoint_ = std::move(endpoint).value();
  return made;
}

// Python's collector of garbage may be the one that drops it, with the GIL held.
TensorEndpoint::~TensorEndpoint() {
  const WithoutGil others_run;
  drop();
  endpoint_.reset();
  use_.reset();
}

void TensorEndpoint::drop() {
  if (endpoint_ == nullptr || is_copy()) return;
  const bool is_over = endpoint_->drop().ok();
  std::lock_guard lock(mutex_);
  for (const ExposedTensorPtr& each : std::exchange(exposed_, {})) {
    if (!is_over) new at::Tensor(each->tensor);  // an engine that hangs may yet write there
    let_go(*each);
  }
}

std::string TensorEndpoint::address() const {
  EndpointAddress now = own_;
  now.process.address = use_->stack()->address();
  return now.encode();
}

Status TensorEndpoint::connect(const std::string& peer) {
  Result<EndpointAddress> address = EndpointAddress::decode(peer);
  if (!address.ok()) return address.status();
  TACO_RETURN_IF_ERROR(check_alike(own_, *address));
  return endpoint_->connect(address->process.address, address->endpoint);
}

Result<ExposedTensorPtr> TensorEndpoint::add(const at::Tensor& tensor) {
  edge::check_exposable(tensor, "a transport");
  auto exposed = std::make_shared<ExposedTensor>();
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  exposed->tensor = tensor.detach();
  exposed->memory = static_cast<std::byte*>(exposed->tensor.data_ptr());
  exposed->bytes = exposed->tensor.nbytes();
  Result<Handle> handle = endpoint_->add(exposed->memory, exposed->bytes);
  if (!handle.ok()) return handle.status();
  exposed->handle = *handle;
  edge::fix_storage(exposed->tensor);
  std::lock_guard lock(mutex_);
  exposed_.push_back(exposed);
  return exposed;
}

void TensorEndpoint::let_go(ExposedTensor& exposed) {
  std::lock_guard lock(exposed.mutex);
  if (!exposed.tensor.defined()) return;
  exposed.is_registered = false;
  edge::release_storage(exposed.tensor);
  exposed.tensor.reset();
}

Status TensorEndpoint::remove(const ExposedTensorPtr& exposed, Time deadline) {
  if (is_copy()) return {};  // nothing is written there any more
  {
    std::lock_guard lock(exposed->mutex);
    for (const std::weak_ptr<Transfer>& weak : exposed->transfers) {
      const TransferPtr transfer = weak.lock();
      if (transfer != nullptr && !transfer->done())
        return invalid("transfers with this memory are under way: wait for them first");
    }
    exposed->is_registered = false;
  }
  TACO_RETURN_IF_ERROR(endpoint_->revoke(exposed->handle.region.number, deadline));
  let_go(*exposed);
  std::lock_guard lock(mutex_);
  std::erase(exposed_, exposed);
  return {};
}

Result<TransferPtr> TensorEndpoint::start(Action action, const ExposedTensorPtr& local,
                                          std::uint64_t offset, std::uint64_t bytes,
                                          const Handle& remote) {
  TACO_RETURN_IF_ERROR(use_->stack()->usable());
  std::lock_guard lock(local->mutex);
  if (!local->is_registered || offset > local->bytes || bytes > local->bytes - offset)
    return invalid("the local view is of memory that is not registered any more");
  Result<TransferPtr> started = endpoint_->start(action, local->memory + offset, bytes, remote);
  if (!started.ok()) return started;
  std::erase_if(local->transfers, [](const std::weak_ptr<Transfer>& weak) {
    const TransferPtr transfer = weak.lock();
    return transfer == nullptr || transfer->done();
  });
  local->transfers.push_back(*started);
  return started;
}

Status TensorEndpoint::close(Time deadline) {
  if (is_copy()) return {};
  TACO_RETURN_IF_ERROR(endpoint_->close(deadline));
  std::lock_guard lock(mutex_);
  for (const ExposedTensorPtr& each : std::exchange(exposed_, {})) let_go(*each);
  return {};
}

}  // namespace taco::remote
