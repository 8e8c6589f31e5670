// Point-to-point calls. Messages between two ranks keep their order per tag.
#include "pg/c10d/backend.h"
#include "pg/c10d/backend_tensors.h"

namespace taco::pg {
namespace {

void check_tag(int tag) { TORCH_CHECK_VALUE(tag >= 0, "taco: tags are >= 0, got ", tag); }

}  // namespace

c10::intrusive_ptr<c10d::Work> Backend::send(std::vector<at::Tensor>& tensors, int destination,
                                             int tag) {
  const at::Tensor& tensor = only(tensors, "send");
  check_root(destination, "send");
  check_tag(tag);
  Translation call(Kind::kSend, "send");
  call.add_input(tensor);
  call.spec.dtype = movement_dtype(tensor.scalar_type());
  call.spec.root = destination;
  call.spec.tag = static_cast<std::uint32_t>(tag);
  return launch(call, {c10d::OpType::SEND, "taco:send"}, tensors, {});
}

c10::intrusive_ptr<c10d::Work> Backend::recv(std::vector<at::Tensor>& tensors, int source,
                                             int tag) {
  const at::Tensor& tensor = only(tensors, "recv");
  check_root(source, "recv");
  check_tag(tag);
  Translation call(Kind::kRecv, "recv");
  call.add_output(tensor);
  call.spec.dtype = movement_dtype(tensor.scalar_type());
  call.spec.root = source;
  call.spec.tag = static_cast<std::uint32_t>(tag);
  return launch(call, {c10d::OpType::RECV, "taco:recv"}, tensors, tensors);
}

c10::intrusive_ptr<c10d::Work> Backend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  const at::Tensor& tensor = only(tensors, "recv from any source");
  check_tag(tag);
  Translation call(Kind::kRecvAny, "recv from any source");
  call.add_output(tensor);
  call.spec.dtype = movement_dtype(tensor.scalar_type());
  call.spec.root = -1;
  call.spec.tag = static_cast<std::uint32_t>(tag);
  return launch(call, {c10d::OpType::RECVANYSOURCE, "taco:recvAnySource"}, tensors, tensors);
}

}  // namespace taco::pg
