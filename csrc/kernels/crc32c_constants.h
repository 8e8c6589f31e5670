// Arithmetic of the CRC32C polynomial, at compile time: tables and folding constants are computed
// here rather than copied from elsewhere.
//
// Polynomials are bit-reflected, as the checksum defines them: bit 31 of a word is x^0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace taco::kernels::crc {

inline constexpr std::uint32_t kPolynomial = 0x82F63B78;

constexpr std::uint32_t times_x(std::uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

// x^exponent modulo the polynomial.
constexpr std::uint32_t power_of_x(std::size_t exponent) {
  std::uint32_t value = 0x8000'0000;
  for (std::size_t i = 0; i < exponent; ++i) value = times_x(value);
  return value;
}

}  // namespace taco::kernels::crc
