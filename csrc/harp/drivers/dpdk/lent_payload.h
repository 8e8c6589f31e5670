// Payload that mbufs refer to where it lies, as external buffers, for as long as anybody reads
// them.
//
// Owner thread only, which is also who frees the mbufs.
#pragma once

#include <rte_mbuf.h>

#include <cstddef>

#include "harp/nic.h"

namespace taco::harp {

class LentPayload {
 public:
  // The size of an mbuf's private area.
  static constexpr std::size_t kPrivateBytes = 64;

  LentPayload() = default;
  LentPayload(const LentPayload&) = delete;
  LentPayload& operator=(const LentPayload&) = delete;

  // The mbuf is empty, of a pool with private areas. A reference counts one more until the mbuf is
  // freed or recalled; without one, the mbuf is freed before the caller gives the payload back.
  void attach(rte_mbuf& mbuf, const IoSlice& payload, TxReference* reference);
  // Mbufs with that reference get copies of what they refer to; null: all of them do.
  void recall(const TxReference* reference);

 private:
  struct Loan {
    rte_mbuf_ext_shared_info shared;
    rte_mbuf* mbuf;
    TxReference* reference;
    LentPayload* owner;
    Loan *next, *previous;
  };
  static_assert(sizeof(Loan) <= kPrivateBytes && kPrivateBytes % RTE_MBUF_PRIV_ALIGN == 0);

  static void on_freed(void*, void* loan);
  static void on_copy_freed(void* copy, void*);
  void end(Loan& loan);

  Loan* loans_ = nullptr;  // those with references
};

}  // namespace taco::harp
