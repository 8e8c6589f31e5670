#include "harp/drivers/dpdk/lent_payload.h"

#include <string.h>

#include <cstdint>
#include <utility>

namespace taco::harp {

void LentPayload::attach(rte_mbuf& mbuf, const IoSlice& payload, TxReference* reference) {
  Loan& loan = *static_cast<Loan*>(rte_mbuf_to_priv(&mbuf));
  loan = {.shared = {},
          .mbuf = &mbuf,
          .reference = reference,
          .owner = this,
          .next = nullptr,
          .previous = nullptr};
  loan.shared.free_cb = on_freed;
  loan.shared.fcb_opaque = &loan;
  rte_mbuf_ext_refcnt_set(&loan.shared, 1);
  const auto bytes = static_cast<std::uint16_t>(payload.bytes);
  rte_pktmbuf_attach_extbuf(&mbuf, const_cast<void*>(payload.data), RTE_BAD_IOVA, bytes,
                            &loan.shared);
  mbuf.data_off = 0;
  mbuf.data_len = bytes;
  if (reference == nullptr) return;
  ++reference->count;
  loan.next = std::exchange(loans_, &loan);
  if (loan.next != nullptr) loan.next->previous = &loan;
}

void LentPayload::on_freed(void*, void* loan) {
  Loan& freed = *static_cast<Loan*>(loan);
  if (freed.reference != nullptr) freed.owner->end(freed);
}

void LentPayload::on_copy_freed(void* copy, void*) { delete[] static_cast<std::byte*>(copy); }

void LentPayload::end(Loan& loan) {
  (loan.previous == nullptr ? loans_ : loan.previous->next) = loan.next;
  if (loan.next != nullptr) loan.next->previous = loan.previous;
  --std::exchange(loan.reference, nullptr)->count;
}

void LentPayload::recall(const TxReference* reference) {
  for (Loan *loan = loans_, *next = nullptr; loan != nullptr; loan = next) {
    next = loan->next;
    if (reference != nullptr && loan->reference != reference) continue;
    auto* const copy = new std::byte[loan->mbuf->data_len];
    memcpy(copy, loan->mbuf->buf_addr, loan->mbuf->data_len);
    loan->mbuf->buf_addr = copy;
    loan->shared.free_cb = on_copy_freed;
    end(*loan);
  }
}

}  // namespace taco::harp
