// One of torch's storages, whose bytes lie in a store's range and come and go beneath it. Nothing
// that torch or a user holds is replaced by that: the Parameter, its TensorImpl, the StorageImpl,
// the version counter, gradients, hooks, views and ties stay what they are, and so does the address
// (docs/decisions/0006).
//
// A storage is present or absent. While it is absent, whoever asks torch for its data gets an error
// that names its parameters. A pointer that was taken before faults once the bytes have left, and
// is right again when they are back. The marks are made by the thread that runs the model, where it
// begins and ends to use a parameter, and not by whatever moves bytes: so a use that was not
// announced fails every time, not only when memory happens to be short, and torch's threads never
// see a mark change under them.
//
// Writes behind torch's back go with note_write(): without it autograd would compute with changed
// values where it had saved others, and say nothing.
//
// One thread at a time calls all this, the one that runs the model. Tensors and storage are
// referred to weakly: nothing here keeps a model alive.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/tensor_form.h"

namespace at {
class Tensor;
}

namespace taco::zerocache {

// Whether a tensor's storage can be placed; kUnsupported names the tensor and says why not. Only
// memory that nobody else sees can be left behind: what torch's CPU allocator made for this
// storage, and what is mapped from a file for this process alone, as loaded weights are. Other
// memory has another user, who would not notice (a NumPy array, other processes).
Status can_be_placed(const at::Tensor& tensor, const std::string& name);

// Whether a tensor has bytes of its own in the host's memory: those that torch makes inside
// FakeTensorMode say that they do, and have none.
bool has_bytes(const at::Tensor& tensor);

// Whether a tensor's bytes lie in some store's range.
bool is_placed(const at::Tensor& tensor);
// Whether they do, and are absent now. Any thread.
bool is_absent(const at::Tensor& tensor);
// Whether they are absent, or it was another thread that made them present: that one may let go of
// them at any moment. Any thread.
bool is_not_here(const at::Tensor& tensor);

class PlacedStorage {
 public:
  // Copies the tensor's whole storage to `address`, where memory is mapped now, and frees its old
  // memory. `range` is kept for as long as torch points there. Afterwards the storage is present.
  static Result<std::unique_ptr<PlacedStorage>> place(const at::Tensor& tensor,
                                                      const std::string& name, std::byte* address,
                                                      std::shared_ptr<const void> range);
  PlacedStorage(const PlacedStorage&) = delete;
  PlacedStorage& operator=(const PlacedStorage&) = delete;

  // Another name of a tensor, or another tensor on this storage: a tie, a view of a flat buffer.
  void add(const at::Tensor& tensor, const std::string& name);
  // A tensor has been given another storage, and that is as it should be.
  void leave(const at::Tensor& tensor);
  bool holds(const at::Tensor& tensor) const;
  // Instead of all names so far.
  void rename(const std::string& name) { names_.assign(1, name); }

  // False once torch has freed the storage: its part of the range is free.
  bool alive() const { return !storage_.expired(); }
  // Checks that the tensors and their storage still are where they were put. kInvalidArgument names
  // one that was given other memory (`p.data = ...`, `model.half()`, `p.share_memory_()`).
  Status check() const;

  void set_present();
  // Error texts read "parameter 'a' is not in memory now: " and then this.
  void set_absent(const char* reason = kEvicted);
  bool present() const { return present_; }

  // The bytes have changed, or will have before anybody sees them: all tensors' versions go up.
  void note_write();
  // Changes whenever one of the tensors is changed in place, by torch or by note_write().
  std::uint64_t version() const;

  // While present: moves the bytes into memory of torch's own, resizable as it was. From then on
  // this object refers to nothing.
  Status restore();

  // The form of the tensor that was placed, as it is now, or was when it was last seen.
  const TensorForm& form();

  std::byte* address() const { return address_; }
  std::size_t bytes() const { return bytes_; }
  // "parameter 'wte.weight' (also 'lm_head.weight')"
  std::string described() const;

  static constexpr const char* kEvicted =
      "its bytes were moved away (evicted) and must be fetched before it is used";
  static constexpr const char* kNotInUse =
      "its use was not announced (it is sure to be there only while its module runs); "
      "cache.full(parameter) copies or sets it, `with cache.use(parameter)` has it there, `with "
      "cache.lend()` lends it to each function of code that is not yours";

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  PlacedStorage(std::byte* address, WeakStorage storage, std::size_t bytes, bool resizable)
      : address_(address), bytes_(bytes), resizable_(resizable), storage_(std::move(storage)) {}

  std::byte* const address_;
  const std::size_t bytes_;
  const bool resizable_;  // before it was placed
  WeakStorage storage_;
  std::vector<WeakTensor> tensors_;
  std::vector<std::string> names_;
  TensorForm form_;
  bool present_ = true;
};

}  // namespace taco::zerocache
