#include "base/huge_pages.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"

namespace taco {

std::size_t free_huge_page_bytes(const std::string& root) {
  std::size_t total = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root + "/sys/kernel/mm/hugepages", error), end;
       !error && entry != end; entry.increment(error)) {
    std::size_t kilobytes = 0;
    const std::string folder = entry->path();
    if (sscanf(entry->path().filename().c_str(), "hugepages-%zukB", &kilobytes) != 1) continue;
    const std::string pages = read_file(folder + "/free_hugepages");
    total += std::strtoull(pages.c_str(), nullptr, 10) * kilobytes * 1024;
  }
  return total;
}

}  // namespace taco
