// Several users share a process's Stack: the collectives, and later a page store or a plugin. Each
// is a service, with a number that is the same in all processes, and hears only what concerns it
// (Observer). No field of the wire names the service: whatever a service names itself begins with
// its number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace taco::harp {

enum class Service : std::uint8_t {
  kCollectives = 0,
  kMessages = 3,  // harp.h's
};
inline constexpr int kServices = 16;  // 4 bits

// MessageKey::group: the service's own number of the group, but for the high four bits.
inline constexpr std::uint64_t group_id(Service service, std::uint64_t number) {
  constexpr int kShift = 60;
  return std::uint64_t{static_cast<std::uint8_t>(service)} << kShift |
         (number & ((std::uint64_t{1} << kShift) - 1));
}
inline constexpr Service service_of_group(std::uint64_t group) {
  return static_cast<Service>(group >> 60);
}

// A notice's first byte: its high four bits. The others are the service's own, for the version of
// its format, say.
inline constexpr std::uint8_t notice_byte(Service service, std::uint8_t own) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(service) << 4 | (own & 0xf));
}
inline Service service_of_notice(std::span<const std::byte> notice) {
  return notice.empty() ? Service::kCollectives
                        : static_cast<Service>(static_cast<std::uint8_t>(notice.front()) >> 4);
}

}  // namespace taco::harp
