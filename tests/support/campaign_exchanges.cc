#include "support/campaign_exchanges.h"

#include <cstring>

#include "support/same_bytes.h"

namespace taco::harp {
namespace {

constexpr std::uint32_t kSignature = 77;

void add_u32(void* out, const void* a, const void* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t x, y;
    std::memcpy(&x, static_cast<const std::byte*>(a) + 4 * i, 4);
    std::memcpy(&y, static_cast<const std::byte*>(b) + 4 * i, 4);
    x += y;
    std::memcpy(static_cast<std::byte*>(out) + 4 * i, &x, 4);
  }
}

}  // namespace

Exchanges::Exchanges(SimRandom& random, SimCluster& cluster, const CampaignPlan& plan)
    : random_(random), cluster_(cluster), plan_(plan) {
  std::uint64_t tag = 0;
  const std::size_t count = 10 + random_.below(30);
  for (; tag < count; ++tag) add(tag, choose_size());
  // Long enough for a packet to be overtaken by a thousand.
  if (plan_.draws(Fault::kFarReordering)) add(tag, 4'000'000);
}

void Exchanges::on_send(SendRequest& request, const Status& status) {
  auto& exchange = *static_cast<Exchange*>(request.context);
  ++exchange.sending.completions;
  exchange.sending.code = status.code();
  // The memory is ours again: a transport that still reads it would now send nonsense.
  for (std::byte& byte : exchange.source) byte = std::byte{0xee};
}

void Exchanges::on_recv(RecvRequest& request, const Status& status) {
  auto& exchange = *static_cast<Exchange*>(request.context);
  ++exchange.receiving.completions;
  exchange.receiving.code = status.code();
  if (status.ok()) {
    // The transport must not touch this any more: keep what it was.
    if (!same_bytes(exchange.target, exchange.expected)) exchange.receiving.code = Code::kInternal;
    return;
  }
  exchange.expected = exchange.target;
}

std::size_t Exchanges::choose_size() {
  switch (random_.below(6)) {
    case 0:
      return 4 * random_.below(16);
    case 1:
    case 2:
      return 4 * random_.below(300);
    case 3:
      return 4 * random_.below(1500);
    case 4:
      return 4 * random_.below(10'000);
    default:
      return 4 * random_.below(60'000);
  }
}

void Exchanges::choose_ends(Exchange& exchange) {
  const bool incast = plan_.draws(Fault::kIncast);
  exchange.to = incast ? 0 : static_cast<std::uint32_t>(random_.below(cluster_.size()));
  do {
    exchange.from = static_cast<std::uint32_t>(random_.below(cluster_.size()));
  } while (exchange.to == exchange.from);
  const Duration spread = random_.chance(0.5) && !incast ? 20 * kMillisecond : 200 * kMicrosecond;
  exchange.sending.at = random_.between(0, spread);
  exchange.receiving.at = random_.between(0, spread);
  if (random_.chance(plan_.cancel)) {
    const Time when = random_.between(0, spread + 2 * kMillisecond);
    (random_.chance(0.5) ? exchange.sending : exchange.receiving).cancel_at = when;
  }
}

void Exchanges::add(std::uint64_t tag, std::size_t bytes) {
  Exchange& exchange = exchanges_.emplace_back();
  choose_ends(exchange);
  exchange.source.resize(bytes);
  exchange.target.resize(bytes);
  random_.fill(exchange.source);
  random_.fill(exchange.target);
  exchange.expected = exchange.source;
  exchange.send.key = exchange.recv.key = {1 + random_.below(3), tag};
  exchange.send.signature = exchange.recv.signature = kSignature;
  exchange.send.data = exchange.source.data();
  exchange.send.bytes = bytes;
  exchange.send.on_done = on_send;
  exchange.recv.max_bytes = bytes + (random_.chance(0.2) ? 5000 : 0);
  exchange.recv.on_done = on_recv;
  if (random_.chance(0.5)) {
    exchange.recv.sink =
        Sink::reduce_into(exchange.target.data(), exchange.target.data(), add_u32, 4);
    add_u32(exchange.expected.data(), exchange.source.data(), exchange.target.data(), bytes / 4);
  } else {
    exchange.recv.sink = Sink::place(exchange.target.data());
  }
  exchange.send.context = exchange.recv.context = &exchange;
}

bool Exchanges::step() {
  const Time now = cluster_.now();
  bool all = true;
  for (Exchange& exchange : exchanges_) {
    if (exchange.done()) continue;
    all = false;
    post_due(exchange, now);
    cancel_due(exchange, now);
    for (const Time when : {exchange.sending.at, exchange.receiving.at, exchange.sending.cancel_at,
                            exchange.receiving.cancel_at}) {
      if (when > now) cluster_.wake_at(when);
    }
  }
  return all;
}

// Nobody begins anything with a process that is dead until its successor is there, nor while it is
// stalled itself.
void Exchanges::post_due(Exchange& exchange, Time now) {
  SimProcess &from = cluster_[exchange.from], &to = cluster_[exchange.to];
  if (from.is_dead() || to.is_dead()) return;
  const auto is_due = [&](const End& end, const SimProcess& process) {
    if (end.posted || end.gone || now < end.at) return false;
    if (now >= process.stalled_until()) return true;
    cluster_.wake_at(process.stalled_until());
    return false;
  };
  if (is_due(exchange.sending, from)) {
    exchange.sending.posted = true;
    from.send(exchange.to, exchange.send);
  }
  if (is_due(exchange.receiving, to)) {
    exchange.receiving.posted = true;
    to.recv(exchange.from, exchange.recv);
  }
}

// A cancelled exchange ends on both sides, as a failed operation of the process group does.
void Exchanges::cancel_due(Exchange& exchange, Time now) {
  End &sending = exchange.sending, &receiving = exchange.receiving;
  if (now < sending.cancel_at && now < receiving.cancel_at) return;
  const Status why(Code::kAborted, "cancelled by the scenario");
  if (!exchange.cancelled) ++cancelled_;
  exchange.cancelled = true;
  if (sending.posted && !sending.done() && now >= sending.cancel_at) {
    cluster_[exchange.from].loop().cancel_st(exchange.send, why);
    sending.cancel_at = kNever;
    receiving.cancel_at = now + 50 * kMillisecond;
  } else if (receiving.posted && !receiving.done() && now >= receiving.cancel_at) {
    cluster_[exchange.to].loop().cancel_st(exchange.recv, why);
    receiving.cancel_at = kNever;
    sending.cancel_at = now + 50 * kMillisecond;
  } else {
    sending.cancel_at = receiving.cancel_at = kNever;
    if (!sending.done()) sending.cancel_at = now + 10 * kMillisecond;
    if (!receiving.done()) receiving.cancel_at = now + 10 * kMillisecond;
  }
}

void Exchanges::on_death(std::uint32_t node) {
  for (Exchange& exchange : exchanges_) {
    const bool sends = exchange.from == node;
    if ((!sends && exchange.to != node) || exchange.done()) continue;
    if (!exchange.sending.posted && !exchange.receiving.posted) continue;  // with the successor
    exchange.doomed = true;
    End& dies = sends ? exchange.sending : exchange.receiving;
    End& survives = sends ? exchange.receiving : exchange.sending;
    if (!dies.done()) dies.gone = true;
    if (!survives.posted) survives.gone = true;
  }
}

std::string Exchanges::check(const Exchange& exchange) {
  const End &sending = exchange.sending, &receiving = exchange.receiving;
  if (sending.completions > 1 || receiving.completions > 1) return "completed twice";
  if (receiving.code == Code::kInternal) return "wrong bytes";
  if (receiving.completions > 0 && !same_bytes(exchange.target, exchange.expected)) {
    return "written after completion";
  }
  if (!sending.done()) return "send never completed";
  if (!receiving.done()) return "receive never completed";
  for (const End* end : {&sending, &receiving}) {
    const bool expected =
        end->code == Code::kOk || (exchange.cancelled && !exchange.doomed) ||
        (exchange.doomed &&
         (end->code == Code::kPeerLost || (exchange.cancelled && end->code == Code::kAborted)));
    if (!expected) return "failed, and nobody is to blame";
  }
  const bool whole = receiving.completions > 0 && receiving.code == Code::kOk;
  if (whole && exchange.recv.bytes != exchange.send.bytes) return "wrong length";
  return "";
}

std::string Exchanges::check() const {
  for (std::size_t i = 0; i < exchanges_.size(); ++i) {
    const std::string why = check(exchanges_[i]);
    if (why.empty()) continue;
    return "exchange " + std::to_string(i) + " (" + std::to_string(exchanges_[i].send.bytes) +
           " bytes from " + std::to_string(exchanges_[i].from) + " to " +
           std::to_string(exchanges_[i].to) + "): " + why;
  }
  return "";
}

}  // namespace taco::harp
