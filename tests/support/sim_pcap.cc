#include "support/sim_pcap.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <cstring>
#include <stdexcept>

namespace taco::harp {
namespace {

constexpr std::uint32_t kSectionHeader = 0x0a0d0d0a, kInterface = 1, kEnhancedPacket = 6;
constexpr std::uint16_t kRawIp = 101;  // LINKTYPE_RAW
constexpr std::uint16_t kComment = 1, kTimeResolution = 9, kEndOfOptions = 0;

class Bytes {
 public:
  template <class T>
  Bytes& put(const T& value) {
    return put_bytes(&value, sizeof value);
  }
  Bytes& put_bytes(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
    return *this;
  }
  // To a multiple of four bytes.
  Bytes& pad() {
    bytes_.resize((bytes_.size() + 3) / 4 * 4);
    return *this;
  }
  Bytes& option(std::uint16_t code, const void* data, std::size_t size) {
    return put(code).put(static_cast<std::uint16_t>(size)).put_bytes(data, size).pad();
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

std::uint32_t sum_of(const void* data, std::size_t size, std::uint32_t sum = 0) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  for (std::size_t i = 0; i < size; ++i) sum += i % 2 == 0 ? bytes[i] << 8u : bytes[i];
  return sum;
}

std::uint16_t checksum_of(std::uint32_t sum) {
  while (sum >> 16u != 0) sum = (sum & 0xffff) + (sum >> 16u);
  return htons(static_cast<std::uint16_t>(~sum));
}

sockaddr_in socket_address(const SimPlace& place) {
  const Endpoint endpoint = SimNetwork::endpoint(place.node, place.address, place.port);
  sockaddr_in address{};
  std::memcpy(&address, endpoint.bytes.data(), sizeof address);
  return address;
}

// The IPv4 packet in which the datagram would travel.
Bytes packet_of(const SimNetwork::Departure& sent, std::uint16_t identification) {
  const sockaddr_in from = socket_address(sent.from), to = socket_address(sent.to);
  udphdr udp{};
  udp.source = from.sin_port;
  udp.dest = to.sin_port;
  udp.len = htons(static_cast<std::uint16_t>(sizeof udp + sent.bytes.size()));
  iphdr ip{};
  ip.version = 4;
  ip.ihl = sizeof ip / 4;
  ip.tot_len = htons(static_cast<std::uint16_t>(sizeof ip + sizeof udp + sent.bytes.size()));
  ip.id = htons(identification);
  ip.ttl = 64;
  ip.protocol = IPPROTO_UDP;
  ip.saddr = from.sin_addr.s_addr;
  ip.daddr = to.sin_addr.s_addr;
  ip.check = checksum_of(sum_of(&ip, sizeof ip));
  std::uint32_t sum = sum_of(&ip.saddr, 8) + IPPROTO_UDP + ntohs(udp.len);
  sum = sum_of(&udp, sizeof udp, sum);
  udp.check = checksum_of(sum_of(sent.bytes.data(), sent.bytes.size(), sum));
  if (udp.check == 0) udp.check = 0xffff;
  Bytes packet;
  return packet.put(ip).put(udp).put_bytes(sent.bytes.data(), sent.bytes.size());
}

}  // namespace

SimPcap::SimPcap(const std::string& file) : name_(file), file_(file, std::ios::binary) {
  if (!file_) throw std::runtime_error("cannot write the packet trace \"" + file + "\"");
  Bytes section;
  section.put(std::uint32_t{0x1a2b3c4d}).put(std::uint16_t{1}).put(std::uint16_t{0});
  section.put(std::int64_t{-1});  // length: not known
  block(kSectionHeader, section.bytes());
  Bytes interface;
  interface.put(kRawIp).put(std::uint16_t{0}).put(std::uint32_t{0});
  const std::uint8_t nanoseconds = 9;
  interface.option(kTimeResolution, &nanoseconds, 1).option(kEndOfOptions, nullptr, 0);
  block(kInterface, interface.bytes());
}

void SimPcap::block(std::uint32_t type, const std::vector<std::byte>& body) {
  const auto length = static_cast<std::uint32_t>(body.size() + 3 * sizeof(std::uint32_t));
  Bytes whole;
  whole.put(type).put(length).put_bytes(body.data(), body.size()).put(length);
  file_.write(reinterpret_cast<const char*>(whole.bytes().data()),
              static_cast<std::streamsize>(whole.bytes().size()));
  file_.flush();  // a scenario that crashes leaves what led to it
  if (!file_) throw std::runtime_error("cannot write to the packet trace \"" + name_ + "\"");
}

void SimPcap::write(const SimNetwork::Departure& sent) {
  const Bytes packet = packet_of(sent, ++identification_);
  const auto size = static_cast<std::uint32_t>(packet.bytes().size());
  const auto time = static_cast<std::uint64_t>(sent.leaves);
  Bytes body;
  body.put(std::uint32_t{0}).put(static_cast<std::uint32_t>(time >> 32u));
  body.put(static_cast<std::uint32_t>(time)).put(size).put(size);
  body.put_bytes(packet.bytes().data(), size).pad();
  if (!sent.fate.empty()) {
    body.option(kComment, sent.fate.data(), sent.fate.size()).option(kEndOfOptions, nullptr, 0);
  }
  block(kEnhancedPacket, body.bytes());
}

}  // namespace taco::harp
