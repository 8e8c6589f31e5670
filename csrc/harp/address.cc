#include "harp/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "harp/session/wire.h"
#include "kernels/kernels.h"

namespace taco::harp {

namespace {

constexpr std::uint32_t kMagic = 0x4f434154;  // "TACO"
constexpr std::uint8_t kFormat = 1;
constexpr std::size_t kMaxName = 64;
constexpr std::size_t kUdpHeader = 8;
constexpr std::size_t kLeastMtu = 1'280;         // that the protocol relies on, as IPv6 does
constexpr std::size_t kLeastMtuOfAll = 576;      // what IPv4 has hosts put together again at least
constexpr std::size_t kLargestDatagram = 8'972;  // of a jumbo frame; loopback could take more

class BlobWriter {
 public:
  template <class T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_name(const std::string& name) {
    const std::size_t length = std::min(name.size(), kMaxName);
    put(static_cast<std::uint8_t>(length));
    bytes_.append(name, 0, length);
  }
  void put_raw(const void* data, std::size_t bytes) {
    bytes_.append(static_cast<const char*>(data), bytes);
  }
  std::string take() { return std::move(bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class BlobReader {
 public:
  explicit BlobReader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T get() {
    T value{};
    get_raw(&value, sizeof value);
    return value;
  }
  void get_raw(void* to, std::size_t bytes) {
    if (rest_.size() < bytes) {
      bad_ = true;
      return;
    }
    std::memcpy(to, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
  }
  std::string get_name() {
    std::string name(std::min<std::size_t>(get<std::uint8_t>(), kMaxName), '\0');
    get_raw(name.data(), name.size());
    return name;
  }
  bool bad() const { return bad_; }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool bad_ = false;
};

void put_path(BlobWriter& writer, const PathAddress& path) {
  const sockaddr* address = sockaddr_of(path.endpoint);
  const bool v6 = address->sa_family == AF_INET6;
  writer.put(static_cast<std::uint8_t>(v6 ? 6 : 4));
  writer.put(port_of(path.endpoint));
  writer.put(path.mtu);
  writer.put(path.mbits);
  if (v6) {
    writer.put(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  } else {
    writer.put(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  }
}

bool get_path(BlobReader& reader, PathAddress& path) {
  const auto family = reader.get<std::uint8_t>();
  const auto port = reader.get<std::uint16_t>();
  path.mtu = reader.get<std::uint32_t>();
  path.mbits = reader.get<std::uint32_t>();
  if (family == 6) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = reader.get<in6_addr>();
    path.endpoint = endpoint_of(reinterpret_cast<const sockaddr*>(&address));
  } else if (family == 4) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr = reader.get<in_addr>();
    path.endpoint = endpoint_of(reinterpret_cast<const sockaddr*>(&address));
  } else {
    return false;
  }
  set_port(path.endpoint, port);
  return !reader.bad();
}

Status damaged(const char* what) {
  return Status(Code::kInvalidArgument,
                std::string("a peer's HARP address is damaged (") + what + ")");
}

}  // namespace

std::string encode(const Address& address) {
  BlobWriter writer;
  writer.put(kMagic);
  writer.put(kFormat);
  writer.put(wire::kVersion);
  writer.put(address.incarnation);
  writer.put(address.secret);
  writer.put(address.pid);
  writer.put(static_cast<std::uint8_t>(address.has_shm));
  if (address.has_shm) writer.put(address.shm);
  writer.put_name(address.host_id);
  writer.put_name(address.host_name);
  const std::size_t paths = std::min(address.paths.size(), kMaxPaths);
  writer.put(static_cast<std::uint8_t>(paths));
  for (std::size_t i = 0; i < paths; ++i) put_path(writer, address.paths[i]);
  writer.put(kernels::crc32c(0, writer.bytes().data(), writer.bytes().size()));
  return writer.take();
}

Result<Address> decode(std::string_view bytes) {
  BlobReader reader(bytes);
  if (reader.get<std::uint32_t>() != kMagic) return damaged("not one at all");
  const auto format = reader.get<std::uint8_t>();
  const auto version = reader.get<std::uint8_t>();
  // Before the checksum: another version may put it elsewhere.
  if (!reader.bad() && (format != kFormat || version != wire::kVersion)) {
    return Status(Code::kVersionMismatch,
                  "a peer speaks HARP version " + std::to_string(version) + " (address format " +
                      std::to_string(format) + "), this process version " +
                      std::to_string(wire::kVersion) + " (address format " +
                      std::to_string(kFormat) + "): install the same taco_torch on every host");
  }
  if (bytes.size() < sizeof(std::uint32_t)) return damaged("too short");
  std::uint32_t crc = 0;
  const std::size_t body = bytes.size() - sizeof crc;
  std::memcpy(&crc, bytes.data() + body, sizeof crc);
  if (crc != kernels::crc32c(0, bytes.data(), body)) return damaged("checksum");

  Address address;
  address.incarnation = reader.get<std::uint64_t>();
  address.secret = reader.get<Secret>();
  address.pid = reader.get<std::uint32_t>();
  address.has_shm = reader.get<std::uint8_t>() != 0;
  if (address.has_shm) address.shm = reader.get<ShmAddress>();
  address.host_id = reader.get_name();
  address.host_name = reader.get_name();
  const std::size_t paths = reader.get<std::uint8_t>();
  if (paths > kMaxPaths) return damaged("too many paths");
  for (std::size_t i = 0; i < paths; ++i) {
    PathAddress path;
    if (!get_path(reader, path)) return damaged("path");
    address.paths.push_back(path);
  }
  reader.get<std::uint32_t>();
  if (reader.bad() || !reader.at_end()) return damaged("length");
  return address;
}

std::string describe(const Address& address, const Endpoint& endpoint) {
  return to_string(endpoint) + " (pid " + std::to_string(address.pid) + " on " + address.host_name +
         ")";
}

Endpoint endpoint_of(const sockaddr* address) {
  Endpoint endpoint;
  endpoint.size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  static_assert(sizeof(sockaddr_in6) <= sizeof(endpoint.bytes));
  std::memcpy(endpoint.bytes.data(), address, endpoint.size);
  return endpoint;
}

const sockaddr* sockaddr_of(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr*>(endpoint.bytes.data());
}

std::uint16_t port_of(const Endpoint& endpoint) {
  // Both families keep the port in the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(endpoint.bytes.data())->sin_port);
}

void set_port(Endpoint& endpoint, std::uint16_t port) {
  reinterpret_cast<sockaddr_in*>(endpoint.bytes.data())->sin_port = htons(port);
}

std::string to_string(const Endpoint& endpoint) {
  char text[INET6_ADDRSTRLEN] = "?";
  const sockaddr* address = sockaddr_of(endpoint);
  const bool v6 = address->sa_family == AF_INET6;
  if (v6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof text);
  } else {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  }
  if (port_of(endpoint) == 0) return text;
  const std::string port = std::to_string(port_of(endpoint));
  return v6 ? "[" + std::string(text) + "]:" + port : std::string(text) + ":" + port;
}

std::array<std::byte, 16> mapped_address(const Endpoint& endpoint) {
  std::array<std::byte, 16> mapped{};
  const sockaddr* address = sockaddr_of(endpoint);
  if (address->sa_family == AF_INET6) {
    std::memcpy(mapped.data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 16);
  } else {
    mapped[10] = mapped[11] = std::byte{0xff};
    std::memcpy(&mapped[12], &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
  }
  return mapped;
}

std::uint16_t wire_port_of(const Endpoint& endpoint) { return htons(port_of(endpoint)); }

Endpoint endpoint_from(const std::array<std::byte, 16>& address, std::uint16_t wire_port) {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = wire_port;
  std::memcpy(&v6.sin6_addr, address.data(), address.size());
  if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    return endpoint_of(reinterpret_cast<const sockaddr*>(&v6));
  }
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = wire_port;
  std::memcpy(&v4.sin_addr, &address[12], 4);
  return endpoint_of(reinterpret_cast<const sockaddr*>(&v4));
}

bool is_usable(const Endpoint& endpoint) {
  if (port_of(endpoint) == 0 || is_loopback(endpoint) || is_link_local(endpoint)) return false;
  const sockaddr* address = sockaddr_of(endpoint);
  if (address->sa_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return !IN6_IS_ADDR_UNSPECIFIED(&v6) && !IN6_IS_ADDR_MULTICAST(&v6);
  }
  const in_addr_t v4 = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
  return v4 != INADDR_ANY && v4 >> 28 < 14;
}

bool is_loopback(const Endpoint& endpoint) {
  const sockaddr* address = sockaddr_of(endpoint);
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
}

bool is_link_local(const Endpoint& endpoint) {
  const sockaddr* address = sockaddr_of(endpoint);
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 16 == 0xa9fe;
}

namespace {

std::size_t headers_before(const Endpoint& address) {
  return (sockaddr_of(address)->sa_family == AF_INET6 ? 40 : 20) + kUdpHeader;
}

}  // namespace

std::size_t max_datagram(const Endpoint& address, std::size_t mtu) {
  return std::min(std::max(mtu, kLeastMtu) - headers_before(address), kLargestDatagram);
}

std::size_t whole_datagram(const Endpoint& address, std::size_t mtu) {
  return mtu < kLeastMtu ? std::max(mtu, kLeastMtuOfAll) - headers_before(address) : 0;
}

std::span<const std::byte> address_bytes(const Endpoint& endpoint) {
  const std::span<const std::byte> all(endpoint.bytes);
  return sockaddr_of(endpoint)->sa_family == AF_INET6
             ? all.subspan(offsetof(sockaddr_in6, sin6_addr), sizeof(in6_addr))
             : all.subspan(offsetof(sockaddr_in, sin_addr), sizeof(in_addr));
}

bool same_host_address(const Endpoint& a, const Endpoint& b) {
  return std::ranges::equal(address_bytes(a), address_bytes(b));
}

bool same_network(const Endpoint& a, const Endpoint& b, int prefix) {
  const std::span<const std::byte> left = address_bytes(a), right = address_bytes(b);
  if (left.size() != right.size()) return false;
  const auto whole = std::min(static_cast<std::size_t>(prefix / 8), left.size());
  if (!std::ranges::equal(left.first(whole), right.first(whole))) return false;
  const auto mask = static_cast<std::byte>(0xff00 >> prefix % 8);
  return whole == left.size() || ((left[whole] ^ right[whole]) & mask) == std::byte{0};
}

}  // namespace taco::harp
