#include "support/collective_reference.h"

#include <algorithm>
#include <cstring>

namespace taco::pg::testing {

namespace {

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15;
  return value ^ (value >> 29);
}

// Applies `f` word by word, a word being an element, or half of a 16-byte one.
template <class F>
void for_words(std::uint32_t element_bytes, std::uint64_t bytes, F f) {
  const std::uint64_t word = element_bytes > 8 ? 8 : element_bytes;
  for (std::uint64_t offset = 0; offset + word <= bytes; offset += word) f(offset, word);
}

std::uint64_t load(const std::uint8_t* from, std::uint64_t bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  return value;
}

void store(std::uint8_t* to, std::uint64_t value, std::uint64_t bytes) {
  std::memcpy(to, &value, bytes);
}

Bytes scaled_input(const Problem& problem, int rank, std::uint32_t piece, std::uint64_t bytes) {
  Bytes contents = input_contents(rank, piece, bytes);
  if (problem.premultiply) {
    scale_elements(problem.element_bytes, rank, contents.data(), contents.data(), bytes);
  }
  return contents;
}

Bytes sum_of_piece(const std::vector<Problem>& problems, std::uint32_t piece, std::uint64_t bytes) {
  const Problem& problem = problems[0];
  Bytes sum = scaled_input(problem, 0, piece, bytes);
  for (std::size_t rank = 1; rank < problems.size(); ++rank) {
    const Bytes operand = scaled_input(problem, static_cast<int>(rank), piece, bytes);
    reduce_elements(Arithmetic::kAdd, problem.element_bytes, sum.data(), sum.data(), operand.data(),
                    bytes);
  }
  if (problem.average) divide_elements(problem.element_bytes, sum.data(), sum.data(), bytes);
  return sum;
}

}  // namespace

void reduce_elements(Arithmetic arithmetic, std::uint32_t element_bytes, std::uint8_t* out,
                     const std::uint8_t* left, const std::uint8_t* right, std::uint64_t bytes) {
  for_words(element_bytes, bytes, [&](std::uint64_t offset, std::uint64_t word) {
    const std::uint64_t a = load(left + offset, word), b = load(right + offset, word);
    store(out + offset, arithmetic == Arithmetic::kAdd ? a + b : mix(a * 3 + mix(b + 1)), word);
  });
}

void scale_elements(std::uint32_t element_bytes, int rank, std::uint8_t* out,
                    const std::uint8_t* in, std::uint64_t bytes) {
  for_words(element_bytes, bytes, [&](std::uint64_t offset, std::uint64_t word) {
    store(out + offset, load(in + offset, word) * static_cast<std::uint64_t>(2 * rank + 3), word);
  });
}

void divide_elements(std::uint32_t element_bytes, std::uint8_t* out, const std::uint8_t* in,
                     std::uint64_t bytes) {
  for_words(element_bytes, bytes, [&](std::uint64_t offset, std::uint64_t word) {
    store(out + offset, load(in + offset, word) * 5, word);
  });
}

std::vector<std::uint64_t> input_lengths(const Problem& problem, int rank, int world) {
  std::vector<std::uint64_t> lengths;
  switch (problem.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      return {problem.bytes};
    case Kind::kAllGather:
    case Kind::kGather:
      return {problem.block(rank)};
    case Kind::kReduceScatter:
      for (int r = 0; r < world; ++r) lengths.push_back(problem.block(r));
      return lengths;
    case Kind::kScatter:
      if (rank == problem.root) lengths.assign(world, problem.bytes);
      return lengths;
    case Kind::kAllToAll:
      if (problem.equal_splits) return std::vector<std::uint64_t>(world, problem.bytes);
      return problem.send_blocks;
    default:
      return {};
  }
}

std::vector<std::uint64_t> output_lengths(const Problem& problem, int rank, int world) {
  std::vector<std::uint64_t> lengths;
  switch (problem.kind) {
    case Kind::kAllReduce:
    case Kind::kBroadcast:
    case Kind::kReduce:
      return {problem.bytes};
    case Kind::kAllGather:
      for (int r = 0; r < world; ++r) lengths.push_back(problem.block(r));
      return lengths;
    case Kind::kGather:
      if (rank == problem.root) lengths.assign(world, problem.bytes);
      return lengths;
    case Kind::kReduceScatter:
    case Kind::kScatter:
      return {problem.block(rank)};
    case Kind::kAllToAll:
      if (problem.equal_splits) return std::vector<std::uint64_t>(world, problem.bytes);
      return problem.receive_blocks;
    default:
      return {};
  }
}

Bytes input_contents(int rank, std::uint32_t piece, std::uint64_t bytes) {
  Bytes contents(bytes);
  std::uint64_t state = mix(static_cast<std::uint64_t>(rank) * 1000003 + piece + 12345);
  for (std::uint64_t offset = 0; offset < bytes; offset += 8) {
    state = mix(state + 0x632be59bd9b4e019);
    std::memcpy(contents.data() + offset, &state, std::min<std::uint64_t>(8, bytes - offset));
  }
  return contents;
}

std::vector<Bytes> expected_outputs(const std::vector<Problem>& problems, int rank) {
  const Problem& problem = problems[rank];
  const int world = static_cast<int>(problems.size());
  const auto own = static_cast<std::uint32_t>(rank);
  std::vector<Bytes> expected;
  const std::vector<std::uint64_t> lengths = output_lengths(problem, rank, world);
  for (std::uint32_t piece = 0; piece < lengths.size(); ++piece) {
    const std::uint64_t bytes = lengths[piece];
    const int peer = static_cast<int>(piece);
    switch (problem.kind) {
      case Kind::kAllReduce:
        expected.push_back(sum_of_piece(problems, 0, bytes));
        break;
      case Kind::kReduce:
        expected.push_back(rank == problem.root ? sum_of_piece(problems, 0, bytes) : Bytes());
        break;
      case Kind::kBroadcast:
        expected.push_back(input_contents(problem.root, 0, bytes));
        break;
      case Kind::kReduceScatter:
        expected.push_back(sum_of_piece(problems, own, bytes));
        break;
      case Kind::kScatter:
        expected.push_back(input_contents(problem.root, own, bytes));
        break;
      case Kind::kAllToAll:
        expected.push_back(input_contents(peer, own, bytes));
        break;
      default:
        expected.push_back(input_contents(peer, 0, bytes));
        break;
    }
  }
  return expected;
}

}  // namespace taco::pg::testing
