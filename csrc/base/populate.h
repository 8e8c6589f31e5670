// Advice to madvise() by which the kernel brings pages in at once, from Linux 5.14 on, whose names
// some systems' headers lack.
#pragma once

namespace taco {

inline constexpr int kPopulateRead = 22;   // MADV_POPULATE_READ
inline constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE

}  // namespace taco
