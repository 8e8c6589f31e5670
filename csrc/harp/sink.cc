// The common sinks: where the bytes of a receive go, straight from the packet buffer.
#include "harp/transport.h"
#include "kernels/kernels.h"

namespace taco::harp {
namespace {

void consume_place(const Sink& sink, std::size_t offset, const void* data, std::size_t bytes) {
  kernels::copy(sink.destination + offset, data, bytes);
}

void consume_by_line(const Sink& sink, std::size_t offset, const void* data, std::size_t bytes) {
  kernels::copy_in_order(sink.destination + offset, data, bytes);
}

void consume_reduce(const Sink& sink, std::size_t offset, const void* data, std::size_t bytes) {
  kernels::reduce(sink.reduce, sink.destination + offset, sink.operand + offset, data,
                  bytes / sink.element_bytes, sink.element_bytes);
}

void consume_nothing(const Sink&, std::size_t, const void*, std::size_t) {}

}  // namespace

Sink Sink::place(void* destination) {
  Sink sink;
  sink.consume = consume_place;
  sink.destination = static_cast<std::byte*>(destination);
  sink.contiguous = true;
  return sink;
}

Sink Sink::place_by_line(void* destination) {
  Sink sink;
  sink.consume = consume_by_line;
  sink.destination = static_cast<std::byte*>(destination);
  sink.by_line = true;
  return sink;
}

Sink Sink::reduce_into(void* destination, const void* operand,
                       void (*reduce)(void*, const void*, const void*, std::size_t),
                       std::uint32_t element_bytes) {
  Sink sink;
  sink.consume = consume_reduce;
  sink.destination = static_cast<std::byte*>(destination);
  sink.operand = static_cast<const std::byte*>(operand);
  sink.reduce = reduce;
  sink.element_bytes = element_bytes;
  return sink;
}

Sink Sink::discard() {
  Sink sink;
  sink.consume = consume_nothing;
  return sink;
}

}  // namespace taco::harp
