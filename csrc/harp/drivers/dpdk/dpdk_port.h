// A FramePort over one queue of one port of DPDK, whatever its poll-mode driver.
//
// Frames leave without a copy where the device's driver copies them itself before it returns
// (memif, af_packet, tap), or hands them to a reader in this process (ring): the payload is
// attached to an mbuf as an external buffer. Other drivers hand addresses to hardware, which knows
// only memory that was registered with it, or take just the first buffer of a frame (af_xdp): for
// them frames are written into mbufs. Frames that arrive are read where the driver has put them.
//
// Functions that end in _st: owner thread only.
#pragma once

#include <rte_mbuf.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "harp/drivers/dpdk/dpdk_library.h"
#include "harp/drivers/dpdk/interrupt_gate.h"
#include "harp/drivers/dpdk/lent_payload.h"
#include "harp/drivers/frames/frame_port.h"

namespace taco::harp {

class DpdkPort final : public FramePort {
 public:
  explicit DpdkPort(const DpdkPortOptions& options) { info_.name = options.device; }
  ~DpdkPort() override;
  Status start(const DpdkPortOptions& options);

  const FramePortInfo& info() const override { return info_; }
  std::size_t send_st(std::span<const TxFrame> frames) override;
  void recall_st(const TxReference* reference) override;
  std::size_t receive_st(std::span<RxFrame> frames) override;
  void release_st() override;
  bool is_up_st() override;
  FramePortCounters counters() const override;

 private:
  static constexpr std::uint16_t kBurst = 32;
  static constexpr std::uint16_t kMaxReceived = kMaxHeld + kBurst;

  Status start_memif(const DpdkPortOptions& options);
  Status make(const DpdkPortOptions& options);
  Status attach(const DpdkPortOptions& options);
  Status configure(const DpdkPortOptions& options);
  Status set_mtu(std::size_t wanted);
  Status make_pool(const DpdkPortOptions& options);
  Status set_up_queues();
  Status begin();
  void connect();
  void on_started();
  void look_for_server();
  void end();
  rte_mbuf* build(const TxFrame& frame);
  rte_mbuf* build_whole(const TxFrame& frame);
  rte_mbuf* build_attached(const TxFrame& frame);
  bool append_attached(rte_mbuf* head, rte_mbuf* last, const IoSlice& slice,
                       TxReference* reference);
  std::uint16_t prepare(rte_mbuf** mbufs, std::uint16_t count) const;
  void ask_for_checksum(rte_mbuf& mbuf, const TxFrame& frame) const;
  bool receive_burst();
  bool hand_out(rte_mbuf& mbuf, RxFrame& frame);
  void free_received(std::uint16_t count);

  FramePortInfo info_;
  std::uint16_t port_ = RTE_MAX_ETHPORTS;
  std::uint16_t receive_slots_ = 0, send_slots_ = 0;
  bool attached_ = false;      // the device is ours to remove again
  std::string server_socket_;  // of a memif; empty: none
  bool started_ = false;
  bool awaits_server_ = false;
  InterruptGate* interrupts_ = nullptr;         // null: they touch no memory that is used here
  std::unique_ptr<InterruptGate::User> rings_;  // none: the same
  Time next_try_ = 0;
  rte_mempool* pool_ = nullptr;
  LentPayload lent_;
  std::array<rte_mbuf*, kMaxReceived> received_{};  // the first `handed_out_` are looked at
  std::uint16_t received_count_ = 0, handed_out_ = 0;
  // Written by the owner alone.
  std::atomic<std::uint64_t> send_copied_{0}, receive_copied_{0};
  std::atomic<std::uint64_t> no_memory_{0}, damaged_{0}, too_large_{0};
  std::atomic<std::uint64_t> frames_sent_{0}, frames_received_{0};
};

Result<std::unique_ptr<FramePort>> open_dpdk_port(const DpdkPortOptions& options);
// EAL's latest messages, which say why a call of DPDK's has failed.
std::string last_words_of_eal();

}  // namespace taco::harp
