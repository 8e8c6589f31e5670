// Lists of cores as people write them: "2,5" or "4-7,12". Any thread.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace taco {

// The cores in the order of the list. Nothing: it is malformed, a range runs backwards, a core
// stands there twice, or is beyond what the kernel's masks of cores can say (1,023).
std::optional<std::vector<int>> cores_from(std::string_view list);

}  // namespace taco
