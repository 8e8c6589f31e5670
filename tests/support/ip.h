// Addresses as people write them, and interfaces that have them.
#pragma once

#include <arpa/inet.h>

#include <cstdint>
#include <string>

#include "harp/address.h"
#include "harp/network.h"

namespace taco::harp {

inline Endpoint ip(const std::string& text, std::uint16_t port = 0) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    return endpoint_of(reinterpret_cast<const sockaddr*>(&v4));
  }
  inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  return endpoint_of(reinterpret_cast<const sockaddr*>(&v6));
}

inline Interface interface(const char* name, const char* address, bool up = true) {
  Interface made;
  made.name = name;
  made.address = ip(address);
  made.up = up;
  made.loopback = made.name == "lo";
  return made;
}

}  // namespace taco::harp
