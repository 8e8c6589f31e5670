// Messages around a ring, as a proxy moves them: as many requests under way as NCCL has steps, the
// oldest tested first, a buffer used again as soon as its request is done.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ext/nccl/check/connection.h"

namespace harp::nccl::check {

struct Traffic {
  std::vector<std::size_t> sizes;  // of the messages, in their order
  std::size_t room = 0;            // of each receive: at least the largest message
  unsigned seed = 0;               // the same for all processes
  std::size_t under_way = 8;       // as NCCL_STEPS
};

// Everything that the ring's neighbours send and get is looked at: bytes, sizes, and that a buffer
// whose receive was done is written no more. The buffers of sends are spoilt once they are done.
class Movement {
 public:
  // `traffic` outlives it.
  Movement(Network& network, const Ring& ring, const Fellows& fellows, const Traffic& traffic);
  ~Movement();

  Status open();
  // Posts what there is room for, and looks at the oldest. True: something happened.
  Result<bool> step();
  bool done() const;
  Status close();

 private:
  class Flow;
  std::unique_ptr<Flow> out_, in_;
};

// All of it.
Status move_around(Network& network, const Ring& ring, const Fellows& fellows,
                   const Traffic& traffic);

}  // namespace harp::nccl::check
