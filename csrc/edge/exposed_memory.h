// Tensors whose memory other processes write into, at any time: windows, and what a transport has
// registered. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace taco::edge {

// ValueError, unless others can write into the memory of this tensor, for "a window", say: it is
// contiguous, and has its memory.
void check_exposable(const at::Tensor& tensor, const char* whose);
// ValueError unless it has its memory, which a tensor whose storage was shrunk has not.
void check_has_memory(const at::Tensor& tensor, const char* whose);

// A storage that is resized loses its memory, which nobody could tell those in time who are at work
// on it: from fix() until as many calls of release(), it cannot be.
void fix_storage(const c10::Storage& storage);
void release_storage(const c10::Storage& storage);
void fix_storage(const at::Tensor& tensor);  // its own
void release_storage(const at::Tensor& tensor);

}  // namespace taco::edge
