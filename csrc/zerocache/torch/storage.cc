#include "zerocache/torch/storage.h"

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/ScalarType.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

namespace taco::zerocache {
namespace {

Status unsupported(const std::string& name, const std::string& what) {
  return Status(Code::kUnsupported, "parameter '" + name + "' " + what);
}

// Takes back release_data_and_set_meta_custom_data_ptr_error_msg_().
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
// torch had no way to before 2.13. But an explicit instantiation may name a private member, and can
// hand it out by a friend.
template <class Tag, typename Tag::Member member>
struct Expose {
  friend typename Tag::Member member_of(Tag) { return member; }
};
struct Mark {
  using Member = bool c10::StorageImpl::*;
  friend Member member_of(Mark);
};
template struct Expose<Mark, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

void clear_mark(c10::StorageImpl& storage) {
  storage.*member_of(Mark()) = false;
  // For the storage to see, by its own look at all its marks, that this one is gone.
  at::DataPtr data = std::move(storage._mutable_data_ptr_no_checks());
  storage.set_data_ptr_noswap(std::move(data));
}
#else
void clear_mark(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }
#endif

// The context of torch's pointer into the range, which it keeps.
struct RangeContext {
  std::shared_ptr<const void> range;
  // The thread that has it present; none: it is absent. As the storage is marked, for threads that
  // only look.
  std::atomic<std::thread::id> user{std::this_thread::get_id()};
};

void let_range_go(void* context) { delete static_cast<RangeContext*>(context); }

// Null: the storage's bytes do not lie in a range.
RangeContext* context_of(c10::StorageImpl& storage) {
  const at::DataPtr& data = storage._mutable_data_ptr_no_checks();
  return data.get_deleter() == &let_range_go ? static_cast<RangeContext*>(data.get_context())
                                             : nullptr;
}

void mark(c10::StorageImpl& storage, bool absent) {
  if (RangeContext* place = context_of(storage)) {
    place->user.store(absent ? std::thread::id() : std::this_thread::get_id(),
                      std::memory_order_relaxed);
  }
}

// Whether an address is mapped from a file, and what is written there reaches no other process: the
// mapping is private, or cannot be written at all.
bool is_own_mapping_of_file(const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    std::uintptr_t begin = 0, end = 0;
    unsigned long inode = 0;
    char rights[5] = {};
    const int found =
        std::sscanf(line.c_str(), "%lx-%lx %4s %*x %*x:%*x %lu", &begin, &end, rights, &inode);
    if (found < 4 || address < begin || address >= end) continue;
    return inode != 0 && (rights[3] == 'p' || rights[1] != 'w');
  }
  return false;
}

TensorForm form_of_tensor(const c10::TensorImpl& tensor) {
  TensorForm form;
  form.dtype = c10::getDtypeNames(c10::typeMetaToScalarType(tensor.dtype())).first;
  form.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  form.strides.assign(tensor.strides().begin(), tensor.strides().end());
  return form;
}

}  // namespace

Status can_be_placed(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage())
    return unsupported(name, "is no dense tensor");
  if (!tensor.device().is_cpu())
    return unsupported(name, "lies on " + tensor.device().str() + ", not in this host's memory");
  // Subclasses with a dispatch of their own (DTensor, quantized weights) keep their data elsewhere.
  if (tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python))
    return unsupported(name, "is of a subclass of torch.Tensor that keeps its data elsewhere");
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() == 0) return unsupported(name, "is empty: there is nothing to place");
  const at::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (context_of(*storage) != nullptr)
    return unsupported(name, "is held by another cache: close() that one first");
  if (data.get_deleter() != c10::GetCPUAllocator()->raw_deleter() &&
      !is_own_mapping_of_file(data.get())) {
    return unsupported(name,
                       "lies in memory that torch did not allocate for it alone (it is shared with "
                       "processes or a NumPy array); give it memory of its own first: "
                       "p.data = p.data.clone()");
  }
  return Status();
}

bool has_bytes(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

bool is_placed(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  return context_of(*tensor.storage().unsafeGetStorageImpl()) != nullptr;
}

namespace {

// The thread that has a placed tensor present; nothing where the tensor is not placed.
std::optional<std::thread::id> user_of(const at::Tensor& tensor) {
  if (!is_placed(tensor)) return std::nullopt;
  return context_of(*tensor.storage().unsafeGetStorageImpl())->user.load(std::memory_order_relaxed);
}

}  // namespace

bool is_absent(const at::Tensor& tensor) { return user_of(tensor) == std::thread::id(); }

bool is_not_here(const at::Tensor& tensor) {
  const std::optional<std::thread::id> user = user_of(tensor);
  return user && *user != std::this_thread::get_id();
}

Result<std::unique_ptr<PlacedStorage>> PlacedStorage::place(const at::Tensor& tensor,
                                                            const std::string& name,
                                                            std::byte* address,
                                                            std::shared_ptr<const void> range) {
  TACO_RETURN_IF_ERROR(can_be_placed(tensor, name));
  const c10::Storage& held = tensor.storage();
  c10::StorageImpl* storage = held.unsafeGetStorageImpl();
  std::memcpy(address, storage->data(), storage->nbytes());
  std::unique_ptr<PlacedStorage> placed(new PlacedStorage(address, held.getWeakStorageImpl(),
                                                          storage->nbytes(), storage->resizable()));
  // So resize_() is refused: the memory that it would allocate is not the store's.
  storage->set_resizable(false);
  storage->set_data_ptr_noswap(at::DataPtr(address, new RangeContext{.range = std::move(range)},
                                           &let_range_go, at::Device(at::kCPU)));
  placed->add(tensor, name);
  static_cast<void>(placed->form());
  return placed;
}

const TensorForm& PlacedStorage::form() {
  for (const WeakTensor& weak : tensors_) {
    const auto tensor = weak.lock();
    const auto elements = tensor ? static_cast<std::size_t>(tensor->numel()) : 0;
    if (elements == 0 || elements * tensor->itemsize() != bytes_) continue;  // a part of it
    form_ = form_of_tensor(*tensor);
    break;
  }
  return form_;
}

void PlacedStorage::add(const at::Tensor& tensor, const std::string& name) {
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
  const auto is_it = [&](const WeakTensor& known) {
    return known._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  };
  if (std::none_of(tensors_.begin(), tensors_.end(), is_it))
    tensors_.emplace_back(tensor.getIntrusivePtr());
}

void PlacedStorage::leave(const at::Tensor& tensor) {
  if (holds(tensor)) return;
  std::erase_if(tensors_, [&](const WeakTensor& known) {
    return known._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  });
}

bool PlacedStorage::holds(const at::Tensor& tensor) const {
  return alive() && tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl() == storage_._unsafe_get_target();
}

std::string PlacedStorage::described() const {
  std::string text = "parameter '" + names_.front() + "'";
  for (std::size_t i = 1; i < names_.size(); ++i)
    text += (i == 1 ? " (also '" : ", '") + names_[i] + "'";
  return names_.size() > 1 ? text + ")" : text;
}

Status PlacedStorage::check() const {
  const auto storage = storage_.lock();
  for (const WeakTensor& weak : tensors_) {
    const auto tensor = weak.lock();
    if (!tensor) continue;
    if (!tensor->has_storage() || tensor->storage().unsafeGetStorageImpl() != storage.get()) {
      return Status(Code::kInvalidArgument,
                    described() +
                        " has been given another storage (by p.data = ..., or by to(), "
                        "half() or double() of its module): the cache cannot move that");
    }
  }
  if (storage && storage->_mutable_data_ptr_no_checks().get() != address_) {
    return Status(Code::kInvalidArgument,
                  described() +
                      " has been given other memory (by share_memory_(), or by being "
                      "sent to another process): the cache cannot move that");
  }
  return Status();
}

void PlacedStorage::set_present() {
  present_ = true;
  if (const auto storage = storage_.lock()) {
    clear_mark(*storage);
    mark(*storage, false);
  }
}

void PlacedStorage::set_absent(const char* reason) {
  present_ = false;
  if (const auto storage = storage_.lock()) {
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        described() + " is not in memory now: " + reason);
    mark(*storage, true);
  }
}

void PlacedStorage::note_write() {
  std::vector<std::pair<decltype(tensors_.front().lock()), std::uint32_t>> tensors;
  for (const WeakTensor& weak : tensors_) {
    auto tensor = weak.lock();
    // Tensors made in inference mode have no version; autograd does not save them.
    if (!tensor || tensor->is_inference()) continue;
    const std::uint32_t version = tensor->version_counter().current_version();
    tensors.emplace_back(std::move(tensor), version);
  }
  // Some share a version counter: a parameter that was made of a view does with its base.
  for (const auto& [tensor, version] : tensors) {
    if (tensor->version_counter().current_version() == version) tensor->bump_version();
  }
}

std::uint64_t PlacedStorage::version() const {
  std::uint64_t sum = 0;
  for (const WeakTensor& weak : tensors_) {
    const auto tensor = weak.lock();
    if (tensor && !tensor->is_inference()) sum += tensor->version_counter().current_version();
  }
  return sum;
}

Status PlacedStorage::restore() {
  TACO_RETURN_IF_ERROR(check());
  const auto storage = storage_.lock();
  if (!storage) return Status();
  if (!present_) {
    return Status(Code::kInvalidArgument,
                  described() + " is not in memory: fetch it before it is given back");
  }
  at::DataPtr own = c10::GetCPUAllocator()->allocate(bytes_);
  std::memcpy(own.get(), address_, bytes_);
  storage->set_data_ptr_noswap(std::move(own));
  if (resizable_) storage->set_resizable(true);
  tensors_.clear();
  storage_.reset();
  return Status();
}

}  // namespace taco::zerocache
