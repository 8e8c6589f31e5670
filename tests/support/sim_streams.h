// Simulated processes that send to each other without a pause: of each stream so many messages are
// under way at all times. Test support.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"

namespace taco::harp {

class SimStreams {
 public:
  SimStreams(SimCluster& cluster, std::size_t message_bytes, std::size_t under_way)
      : cluster_(cluster), message_bytes_(message_bytes), under_way_(under_way) {}
  ~SimStreams() { cluster_.end(); }  // before the memory of messages
  SimStreams(const SimStreams&) = delete;
  SimStreams& operator=(const SimStreams&) = delete;

  void add(std::uint32_t from, std::uint32_t to, Time start = 0) {
    streams_.push_back({.from = from, .to = to, .start = start, .transfers = {}});
  }
  // Bytes of the messages that each stream has completed meanwhile; `look` is called once in a
  // millisecond.
  std::vector<double> run(
      Duration time, const std::function<void()>& look = [] {}) {
    std::vector<double> before;
    for (const Stream& stream : streams_) before.push_back(stream.delivered);
    const Time end = cluster_.now() + time;
    for (Time next = cluster_.now(); next <= end; next += kMillisecond) {
      cluster_.wake_at(next);
      cluster_.run(next, [&] { return post() >= next; });
      look();
    }
    std::vector<double> bytes;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      bytes.push_back(streams_[i].delivered - before[i]);
    }
    return bytes;
  }

 private:
  struct Stream {
    std::uint32_t from, to;
    Time start;
    std::vector<std::unique_ptr<Transfer>> transfers;
    double delivered = 0;
  };
  Time post() {
    for (Stream& stream : streams_) {
      if (cluster_.now() < stream.start) continue;
      const auto done = std::erase_if(stream.transfers, [](auto& one) { return one->done(); });
      stream.delivered += static_cast<double>(done * message_bytes_);
      while (stream.transfers.size() < under_way_) {
        Transfer& next = *stream.transfers.emplace_back(new Transfer(++tag_, message_bytes_));
        cluster_[stream.to].recv(stream.from, next.recv);
        cluster_[stream.from].send(stream.to, next.send);
      }
    }
    return cluster_.now();
  }

  SimCluster& cluster_;
  const std::size_t message_bytes_, under_way_;
  std::vector<Stream> streams_;
  std::uint64_t tag_ = 0;
};

}  // namespace taco::harp
