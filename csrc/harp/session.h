// The conversation with one remote process over packets: handshake, reliability, flow and
// congestion control. Implements Link for the Matcher. Knows no socket and no clock: packets come
// in through on_packets(), go out through SessionHost::nic(), time is SessionHost::now(); so the
// same object serves UDP and the simulator.
//
// Made by the engine on first use of a peer, or when the peer's hello arrives; starts connecting
// at once. Owner thread only. The engine finds it by connection_id() for every packet but a hello,
// and by the hello's `sender` incarnation (after checking target_secret) for a hello.
//
// Promises: every byte of a bulk message reaches its Sink exactly once, after its checksum; a
// finished request's memory is not touched again; losing the peer is reported once, through
// LinkEvents::on_lost, never while packets are being read by others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harp/flow.h"
#include "harp/link.h"
#include "harp/session_host.h"
#include "harp/wire.h"

namespace taco::harp {

struct CongestionOps;

struct SessionConfig {
  std::uint64_t own_incarnation = 0;
  std::uint64_t peer_incarnation = 0;
  Secret peer_secret{};
  Endpoint peer_endpoint;        // where to say hello; later packets go where the peer answered
  std::uint32_t local_path = 0;  // which local address of the Nic
  std::size_t max_datagram = 0;  // 0: the Nic's; the peer's is agreed in the handshake
  Duration peer_timeout = 10 * kSecond;
  std::string description;                    // "10.0.0.2:41234 (pid 77 on nodeb)", for error texts
  const CongestionOps* congestion = nullptr;  // null: swift
};

class Session final : public Link {
 public:
  // All references outlive the session. Link calls may be made at once.
  Session(SessionConfig config, SessionHost& host, LinkEvents& events);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::uint64_t connection_id() const { return own_connection_; }
  std::uint64_t peer_connection_id() const { return peer_connection_; }  // 0: not known yet
  bool established() const { return peer_connection_ != 0; }
  bool ended() const { return state_ == State::kEnded; }

  // A datagram, or run of datagrams, that carries connection_id(). Unauthenticated until parsed.
  void on_packets(const RxPacket& packets);
  // A hello whose target_secret and target the engine has checked against this process's.
  void on_hello(const wire::Hello& hello, const Endpoint& source, std::uint32_t local_path);
  // Does the hello prove that its sender was told our secret, and mean this process?
  static bool authentic(const wire::Hello& hello, const Secret& own_secret,
                        std::uint64_t own_incarnation);

  // The engine's own loop stood still for `gap`: nobody is to blame for silence meanwhile.
  void on_gap(Duration gap);
  // Ask for a sign of life now (the network hinted that the peer is gone).
  void probe();
  // The engine's verdict, with its reasons. LinkEvents::on_lost follows, once.
  void declare_lost(const Status& why);
  // Sends acknowledgements that wait for company. Before going to sleep for long.
  void flush_acks();

  Time last_heard() const { return last_heard_; }  // 0: never
  // Probes sent since the peer was last heard.
  std::uint32_t unanswered_probes() const { return unanswered_probes_; }
  const Endpoint& remote() const { return remote_; }
  const std::string& description() const { return config_.description; }
  std::size_t memory_bytes() const;  // of everything it holds, itself included

  // Link.
  std::size_t eager_limit() const override;
  void eager(SendRequest& request) override;
  void bulk(SendRequest& request, SlotId slot) override;
  void withdraw(SendRequest& request) override;
  void forget(SlotId slot) override;
  void want(const Want& want) override;
  void offer(const Offer& offer) override;
  void control(Control kind, const MessageKey& key, SlotId slot, std::uint64_t value) override;
  void notice(std::span<const std::byte> bytes) override;
  void release(Staging&) override {}
  bool busy() const override;
  void leave() override;

 private:
  enum class State : std::uint8_t { kConnecting, kOpen, kLeaving, kEnded };
  State state_ = State::kConnecting;
  SessionConfig config_;
  SessionHost& host_;
  LinkEvents& events_;
  std::uint64_t own_connection_ = 0, peer_connection_ = 0;
  Endpoint remote_;
  Time last_heard_ = 0;
  std::uint32_t unanswered_probes_ = 0;
};

}  // namespace taco::harp
