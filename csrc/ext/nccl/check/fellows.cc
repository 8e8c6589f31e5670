#include "ext/nccl/check/fellows.h"

#include "base/file.h"

namespace harp::nccl::check {

taco::Result<std::vector<std::string>> Fellows::all_gather(const std::string& own) {
  const std::string round = folder_ + "/" + std::to_string(round_++) + ".";
  // A file with nothing in it would look like none.
  if (!taco::write_file(round + std::to_string(rank_), "." + own)) {
    return taco::Status(taco::Code::kResource, folder_ + " cannot be written");
  }
  std::vector<std::string> all;
  for (int rank = 0; rank < count_; ++rank) {
    const std::string heard = taco::await_file(round + std::to_string(rank), deadline_);
    if (heard.empty()) {
      return taco::Status(taco::Code::kTimeout,
                          "process " + std::to_string(rank) + " did not come");
    }
    all.push_back(heard.substr(1));
  }
  return all;
}

}  // namespace harp::nccl::check
