// TCP beside: messages of one size that follow each other on a connection.
#include <vector>

#include "harp/tools/perf_ways.h"

namespace taco::harp::perf {
namespace {

constexpr char kMoreFollows = 1, kLastOne = 0;

}  // namespace

// The first byte says whether another round follows, there and back.
Result<Figures> TcpWay::latency(const Job& job, bool is_client) {
  std::vector<char> message(job.bytes, 'x');
  Figures figures;
  const Time first = monotonic_now();
  message[0] = kMoreFollows;
  for (std::int64_t i = 0; message[0] != kLastOne; ++i) {
    const Time start = monotonic_now();
    if (is_client && !job.has_time_for_another(i, start - first)) message[0] = kLastOne;
    if (is_client) TACO_RETURN_IF_ERROR(connection_.send(message.data(), message.size()));
    TACO_RETURN_IF_ERROR(connection_.receive(message.data(), message.size(), polls_));
    if (!is_client) TACO_RETURN_IF_ERROR(connection_.send(message.data(), message.size()));
    if (is_client) figures.half_round_trips.push_back((monotonic_now() - start) / 2);
  }
  return figures;
}

// A batch leaves by one call. Its first byte says whether another one follows; an answer to the
// last tells the client that all of them have arrived.
Result<Figures> TcpWay::stream(const Job& job, bool is_client) {
  std::vector<char> batch(job.bytes * job.batch, 'y');
  Figures figures;
  const Time start = monotonic_now();
  for (batch[0] = kMoreFollows; batch[0] != kLastOne; figures.messages += job.batch) {
    if (is_client) {
      const auto taken = static_cast<double>(monotonic_now() - start) / kSecond;
      batch[0] = taken < job.seconds ? kMoreFollows : kLastOne;
      TACO_RETURN_IF_ERROR(connection_.send(batch.data(), batch.size()));
    } else {
      TACO_RETURN_IF_ERROR(connection_.receive(batch.data(), batch.size(), polls_));
    }
  }
  char answer = 0;
  TACO_RETURN_IF_ERROR(is_client ? connection_.receive(&answer, 1) : connection_.send(&answer, 1));
  figures.seconds = static_cast<double>(monotonic_now() - start) / kSecond;
  return figures;
}

}  // namespace taco::harp::perf
