// Whatever arrives from the network: every byte string goes through parse() and the readers behind
// it, with the checksum ignored so that the fuzzer gets past it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "harp/session/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace wire = taco::harp::wire;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  wire::peek_connection(bytes);
  wire::is_hello(bytes);
  wire::is_reset(bytes);
  wire::Packet packet;
  if (wire::parse(bytes, packet, false) != wire::Verdict::kGood) return 0;
  if (packet.type == wire::Type::kData && packet.body.size() > packet.message_bytes) abort();
  if (packet.type == wire::Type::kFragment &&
      packet.fragment_offset + packet.body.size() > packet.fragment_of) {
    abort();
  }
  if (packet.type == wire::Type::kHello) wire::parse_hello(packet.body);
  if (packet.type == wire::Type::kReset && packet.body.size() != sizeof(wire::Header)) abort();
  if (packet.type != wire::Type::kControl) return 0;
  wire::FrameReader frames(packet.body);
  wire::Frame frame;
  while (frames.next(frame)) {
    if (frame == wire::Frame::kAck) {
      for (std::uint32_t i = 0; i < frames.ack.count; ++i) {
        if (frames.ack.ranges[i].first > frames.ack.ranges[i].last) abort();
        if (i > 0 && frames.ack.ranges[i].last + 1 >= frames.ack.ranges[i - 1].first) abort();
      }
    }
    if (frame != wire::Frame::kRecords) continue;
    wire::RecordReader records(frames.records);
    wire::Record record;
    while (records.next(record)) {
    }
  }
  return 0;
}
