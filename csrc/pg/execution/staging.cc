#include "pg/execution/staging.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <vector>

namespace taco::pg {
namespace {

bool same(const Piece& a, const Piece& b) { return a.data == b.data && a.bytes == b.bytes; }

bool overlap(const Piece& a, const Piece& b) {
  const std::less<const std::byte*> before;
  return a.bytes > 0 && b.bytes > 0 && before(a.data, b.data + b.bytes) &&
         before(b.data, a.data + a.bytes);
}

// Do two different pieces of the list overlap? They rarely lie out of order, so the common case is
// one pass.
bool overlap_within(const std::vector<Piece>& pieces) {
  if (pieces.size() < 2) return false;
  const std::less<const std::byte*> before;
  bool ascending = true;
  for (std::size_t i = 1; i < pieces.size() && ascending; ++i)
    ascending = !before(pieces[i].data, pieces[i - 1].data + pieces[i - 1].bytes);
  if (ascending) return false;
  std::vector<Piece> sorted;
  for (const Piece& piece : pieces)
    if (piece.bytes > 0) sorted.push_back(piece);
  std::sort(sorted.begin(), sorted.end(),
            [&](const Piece& a, const Piece& b) { return before(a.data, b.data); });
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (overlap(sorted[i - 1], sorted[i])) return true;
  return false;
}

// The piece from the first byte of any piece to the last of any.
Piece hull(const std::vector<Piece>& pieces) {
  const std::less<const std::byte*> before;
  const std::byte *first = nullptr, *end = nullptr;
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0) continue;
    if (first == nullptr || before(piece.data, first)) first = piece.data;
    if (end == nullptr || before(end, piece.data + piece.bytes)) end = piece.data + piece.bytes;
  }
  return {const_cast<std::byte*>(first), static_cast<std::size_t>(end - first)};
}

// Overlaps of inputs with outputs, but for the one allowed pair.
bool overlap_across(const OperationSpec& spec, std::size_t allowed_input,
                    std::size_t allowed_output) {
  if (!overlap(hull(spec.inputs), hull(spec.outputs))) return false;
  for (std::size_t i = 0; i < spec.inputs.size(); ++i) {
    for (std::size_t o = 0; o < spec.outputs.size(); ++o) {
      if (overlap(spec.inputs[i], spec.outputs[o]) && (i != allowed_input || o != allowed_output))
        return true;
    }
  }
  return false;
}

struct Place {
  std::size_t input = SIZE_MAX, output = SIZE_MAX;
};

// Which input may lie exactly on which output.
Place allowed_place(const OperationSpec& spec, int rank) {
  const auto own = static_cast<std::size_t>(rank);
  switch (spec.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      return {0, 0};
    case Kind::kAllGather:
    case Kind::kGather:
      return {0, own};
    case Kind::kReduceScatter:
    case Kind::kScatter:
      return {own, 0};
    default:
      return {};
  }
}

std::size_t total(const std::vector<Piece>& pieces) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += (piece.bytes + 63) / 64 * 64;
  return bytes;
}

Status no_scratch(std::size_t bytes) {
  return Status(Code::kResource,
                "no memory to stage " + std::to_string(bytes) + " bytes of overlapping buffers");
}

// Gives every piece its own part of `memory`.
void place(std::vector<Piece>& pieces, std::byte*& memory, bool copy) {
  for (Piece& piece : pieces) {
    if (copy && piece.bytes > 0) std::memcpy(memory, piece.data, piece.bytes);
    piece.data = memory;
    memory += (piece.bytes + 63) / 64 * 64;
  }
}

}  // namespace

bool is_in_place(const OperationSpec& spec, int rank) {
  const Place place = allowed_place(spec, rank);
  return place.input < spec.inputs.size() && place.output < spec.outputs.size() &&
         spec.inputs[place.input].bytes > 0 &&
         same(spec.inputs[place.input], spec.outputs[place.output]);
}

Status stage_overlaps(OperationState& operation, int rank) {
  OperationSpec& spec = operation.spec;
  operation.in_place = is_in_place(spec, rank);
  // One piece that is both, as in every all_reduce of torch: nothing is left to overlap.
  if (operation.in_place && spec.inputs.size() == 1 && spec.outputs.size() == 1) return Status();
  const Place allowed = operation.in_place ? allowed_place(spec, rank) : Place{};
  const bool outputs = overlap_within(spec.outputs);
  const bool inputs = outputs || overlap_across(spec, allowed.input, allowed.output);
  if (!inputs) return Status();
  const std::size_t bytes = total(spec.inputs) + (outputs ? total(spec.outputs) : 0);
  operation.staged.memory.reset(new (std::nothrow) std::byte[bytes]);
  if (operation.staged.memory == nullptr) return no_scratch(bytes);
  operation.in_place = false;
  std::byte* memory = operation.staged.memory.get();
  place(spec.inputs, memory, true);
  if (!outputs) return Status();
  operation.staged.outputs = spec.outputs;
  place(spec.outputs, memory, false);
  return Status();
}

Result<std::unique_ptr<std::byte[]>> copy_overlapping_inputs(OperationSpec& spec, int rank) {
  std::unique_ptr<std::byte[]> memory;
  const Place allowed = is_in_place(spec, rank) ? allowed_place(spec, rank) : Place{};
  if (!overlap_across(spec, allowed.input, allowed.output)) return memory;
  const std::size_t bytes = total(spec.inputs);
  memory.reset(new (std::nothrow) std::byte[bytes]);
  if (memory == nullptr) return no_scratch(bytes);
  std::byte* at = memory.get();
  place(spec.inputs, at, true);
  return memory;
}

void unstage(OperationState& operation) {
  const std::vector<Piece>& outputs = operation.staged.outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].bytes > 0)
      std::memcpy(outputs[i].data, operation.spec.outputs[i].data, outputs[i].bytes);
  }
}

}  // namespace taco::pg
