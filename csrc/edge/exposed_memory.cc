#include "edge/exposed_memory.h"

#include <map>

#include "base/fork.h"

namespace taco::edge {
namespace {

// Locked by what keeps forks out, too: a child needs it for the storages that it exposes itself.
class FixedStorages {
 public:
  void fix(c10::StorageImpl* storage) {
    const NoForkMeanwhile lock;
    Fixed& fixed = fixed_[storage];
    if (fixed.users++ > 0) return;
    fixed.was_resizable = storage->resizable();
    storage->set_resizable(false);
  }
  void release(c10::StorageImpl* storage) {
    const NoForkMeanwhile lock;
    const auto found = fixed_.find(storage);
    if (--found->second.users > 0) return;
    // One that moved to shared memory meanwhile has no allocator, and cannot be resized any more.
    if (found->second.was_resizable && storage->allocator() != nullptr) {
      storage->set_resizable(true);
    }
    fixed_.erase(found);
  }

 private:
  struct Fixed {
    int users = 0;
    bool was_resizable = false;
  };
  std::map<c10::StorageImpl*, Fixed> fixed_;
};

// Never destroyed: windows may outlive static destruction.
FixedStorages& fixed_storages() {
  static FixedStorages* const instance = new FixedStorages;
  return *instance;
}

}  // namespace

void check_exposable(const at::Tensor& tensor, const char* whose) {
  TORCH_CHECK_VALUE(
      tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(), "taco: ", whose,
      " needs a contiguous tensor, since others write into its memory; got one of "
      "the sizes ",
      tensor.sizes(), " and the strides ", tensor.strides(), ": register tensor.contiguous()");
  check_has_memory(tensor, whose);
}

void check_has_memory(const at::Tensor& tensor, const char* whose) {
  const std::size_t needed = tensor.storage_offset() * tensor.element_size() + tensor.nbytes();
  TORCH_CHECK_VALUE(tensor.nbytes() == 0 || tensor.storage().nbytes() >= needed,
                    "taco: the tensor for ", whose, " needs ", needed,
                    " bytes of a storage that has ", tensor.storage().nbytes(),
                    ": its memory is gone (a sharded parameter, say, between two uses)");
}

void fix_storage(const c10::Storage& storage) {
  fixed_storages().fix(storage.unsafeGetStorageImpl());
}
void release_storage(const c10::Storage& storage) {
  fixed_storages().release(storage.unsafeGetStorageImpl());
}

void fix_storage(const at::Tensor& tensor) { fix_storage(tensor.storage()); }
void release_storage(const at::Tensor& tensor) { release_storage(tensor.storage()); }

}  // namespace taco::edge
