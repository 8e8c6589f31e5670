// Frames as a driver without a kernel gets them from the network. The first byte says how much of
// the frame lies in its first piece.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "harp/drivers/frames/icmp_refusal.h"
#include "harp/drivers/frames/neighbour_message.h"
#include "harp/drivers/frames/udp_frame.h"

namespace {

using namespace taco::harp;

void read_datagram(std::span<const std::byte> head, std::span<const std::byte> frame) {
  UdpFrame read;
  if (parse_udp_frame(head, frame.size(), read) != FrameVerdict::kUdp) return;
  if (read.payload_offset + read.payload_bytes > frame.size()) abort();
  if (read.payload_offset > head.size() || is_nobodys(read.source)) abort();
  check_udp_checksum(read, frame.subspan(read.payload_offset, read.payload_bytes));
}

void read_neighbour(std::span<const std::byte> frame) {
  const auto message = parse_neighbour_message(frame);
  if (!message) return;
  if ((message->mac[0] & std::byte{1}) != std::byte{0} || is_nobodys(message->subject)) abort();
  if (message->kind != NeighbourMessage::Kind::kSolicitation) return;
  std::array<std::byte, kMaxNeighbourFrame> answer;
  const std::size_t bytes = write_advertisement({std::byte{2}}, message->subject, *message, answer);
  const auto read = parse_neighbour_message(std::span(answer).first(bytes));
  if (!read || read->kind != NeighbourMessage::Kind::kAdvertisement) abort();
  if (!(read->subject == message->subject)) abort();
}

// A refusal's quotation must lie in the frame, behind two headers of IP, ICMP's and UDP's.
void read_refusal(std::span<const std::byte> frame) {
  const auto refused = parse_icmp_refusal(frame);
  if (!refused) return;
  constexpr std::size_t kMin = 14 + 20 + 8 + 20 + 8;
  if (refused->refusal.quoted.size() + kMin > frame.size()) abort();
  if (is_ipv6(refused->source) != is_ipv6(refused->refusal.destination)) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  const auto frame = std::as_bytes(std::span(data, bytes)).subspan(1);
  const std::size_t piece = data[0] < 128 ? data[0] : frame.size();
  read_datagram(frame.first(std::min(piece, frame.size())), frame);
  read_neighbour(frame);
  read_refusal(frame);
  return 0;
}
