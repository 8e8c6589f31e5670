// Watches what a program does to gradients between two passes: torch tells nobody, so hooks of the
// parameters look at p.grad before anything is added to it. What has been there since the last pass
// may have been thrown away (None, or zeros in its place), or be another tensor (clipped, say),
// which is what it was made of.
//
// The hooks live as long as the parameters, the watch as long as whoever asks it; it holds no
// parameter. Autograd's threads and those that reduce, one after the other.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace taco::pg {

class GradientWatch {
 public:
  struct Seen;

  explicit GradientWatch(const std::vector<std::pair<std::string, at::Tensor>>& parameters);
  ~GradientWatch();
  GradientWatch(const GradientWatch&) = delete;
  GradientWatch& operator=(const GradientWatch&) = delete;

  // A gradient has been computed for it since its last pass.
  bool is_used(int parameter) const;
  // None has been, for certain.
  bool is_idle(int parameter) const;
  // The parameters whose gradient is gone or zeros, but for what has been added since.
  std::vector<int> thrown_away(std::span<const int> parameters) const;
  // Their pass is about to begin: what was used until now is part of it.
  void begin(std::span<const int> parameters);
  // Notes that their gradients are now as their pass has left them.
  void end(std::span<const int> parameters);
  // Null where the parameter is no more.
  at::Tensor parameter(int parameter) const;

 private:
  std::vector<std::shared_ptr<Seen>> seen_;  // by parameter
};

// Whether a tensor of float32 in a row is all zeros; any other tensor counts as not.
bool is_zero_everywhere(const at::Tensor& tensor);

}  // namespace taco::pg
