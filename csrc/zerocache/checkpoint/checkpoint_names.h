// How the files of a checkpoint are called.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace taco::zerocache {

inline constexpr char kManifestName[] = "checkpoint.manifest";
inline constexpr char kProvisionalManifestName[] = "checkpoint.manifest.new";

// "pages-7-0.data": the first file of save 7.
std::string data_name(std::uint64_t serial, std::uint32_t index);
// The number of the save that a file belongs to, if it is a data file by its name.
std::optional<std::uint64_t> serial_of(const std::string& name);

}  // namespace taco::zerocache
