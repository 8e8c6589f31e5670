// How blocks of elements are coded for the wire, for algorithms that send less than they are given
// (16-bit values, the largest few). The planner asks a codec how much room a block needs; encode,
// decode and decode-and-reduce steps of a Schedule (pg/planning/schedule.h) run it. How long a
// coded block really is, is known once it has been encoded: the message that carries it is as long
// as that, and tells its receiver.
//
// Constant once made, and shared by all operations that use it. All ranks must give an operation
// codecs that mean the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/kernels.h"

namespace taco::pg {

// Error feedback: what a rank has yet to send of one gradient, kept from one call to the next by
// codecs that send only a part. It covers the shard that this rank sends to other hosts, in float32
// elements. The starter of operations owns it; one operation at a time uses it, on the engine.
// pg/codecs/feedback.h has what its owner does with it in between.
struct Feedback {
  // The elements that one encoding of a block has taken out of it.
  struct Sent {
    std::size_t from = 0;                // element of the shard that the block begins at
    std::vector<std::uint32_t> indices;  // ascending
    std::vector<float> values;
    std::vector<float> momentum;  // of those elements; empty where there is none
  };
  // As it was before the encodings that may be taken back.
  struct Before {
    // For each parameter, as `begins` has them, whether the next encoding is the first of them: it
    // copies what it is about to change.
    std::vector<std::uint8_t> first;
    std::vector<float> residual, momentum;  // of what has been copied; elsewhere they mean nothing
  };

  std::vector<float> residual;  // element i of the shard: what has been added up and not sent
  std::vector<float> momentum;  // the same for DGC's momentum correction; empty: none
  // Where in the shard each parameter begins, ascending, the first at 0. The residual of a
  // parameter whose gradient is zero everywhere is held back: nobody might use what is sent of it.
  // Empty: nothing is held back.
  std::vector<std::uint64_t> begins;
  // Remember what is sent, for restore(); and, where `before.first` says so, what was there before,
  // for rewind().
  bool undoable = false;
  std::vector<Sent> sent;  // several of a block, if it was encoded more than once
  Before before;
};

// A block under way: encoded or decoded part by part, so that the engine serves others in between.
// Elements are aligned as their type asks, coded blocks to 8 bytes.
struct Coding {
  const std::byte* source = nullptr;
  std::size_t source_bytes = 0;
  std::byte* destination = nullptr;
  std::size_t destination_bytes = 0;  // to encode: the room there is, most() of the block
  // Decode and reduce: destination = operand (reduce) what was decoded. The operand may be the
  // destination, or null: just decode.
  const std::byte* operand = nullptr;
  kernels::ReduceFn reduce = nullptr;
  kernels::Dtype dtype = kernels::Dtype::kU8;
  // Decode, and only where the codec has a memory: what each decoded element is divided by.
  std::uint32_t divisor = 1;
  // Encode, where the codec has a memory: the shard's, and which element of it the block begins at.
  Feedback* feedback = nullptr;
  std::size_t feedback_from = 0;
  // The codec's; 0 and false at first.
  std::size_t read = 0;     // bytes of the source
  std::size_t written = 0;  // bytes of the destination: once encoded, the block's length
  bool done = false;
};

// How a block is added to what is there while it arrives, where every element is coded by itself.
struct Arrival {
  std::size_t coded_bytes = 0;  // of an element; 0: a block has to be there as a whole
  // sum[i] = sum[i] + what coded[i] stands for, of float32; `sum` twice.
  kernels::ReduceFn add = nullptr;
};

class Codec {
 public:
  virtual ~Codec() = default;
  // Tells the settings too: codecs of the same name mean the same.
  virtual const char* name() const = 0;

  // For the planner; the same on all ranks. The most that a block of so many bytes becomes, what it
  // should become, and how many bytes of elements one processor encodes in a second.
  virtual std::uint64_t most(std::uint64_t bytes) const = 0;
  virtual std::uint64_t expected(std::uint64_t bytes) const { return most(bytes); }
  virtual double bytes_per_second() const = 0;
  // The same of decoding, and of adding a block to what is there, where that is quicker.
  virtual double decoded_bytes_per_second() const { return bytes_per_second(); }
  virtual double added_bytes_per_second() const { return decoded_bytes_per_second(); }
  // It sends a part of each block and needs a Feedback for the rest. What it has encoded can be
  // added up by every receiver, but not be encoded again.
  virtual bool has_memory() const { return false; }
  // The longest block to give it, in bytes of elements: a multiple of 64.
  virtual std::uint64_t longest_block() const { return std::uint64_t{4} << 20; }

  // As decode() with an operand and kSum, to the bit.
  virtual Arrival arrival() const { return {}; }

  // Its settings in kCodecCodeBits bits, by which ranks notice that they code differently, and
  // which describe_codec() puts in words. Here a hash of the name, for codecs that have no
  // settings.
  virtual std::uint32_t code() const;

  // Go on with a block, on the engine, for about `budget` bytes of its elements; return how many
  // they were. Called again until `done`, or a failure. decode() is given what a peer has sent: it
  // must trust no length and no index in it.
  virtual Result<std::size_t> encode(Coding& coding, std::size_t budget) const = 0;
  virtual Result<std::size_t> decode(Coding& coding, std::size_t budget) const = 0;
};

// The width of what Codec::code() returns. Ratios that differ by less than 0.2%, or momenta that
// differ by less than 0.07, may have the same code. Then it is for decode() to notice a block of
// another length.
inline constexpr int kCodecCodeBits = 20;
std::uint32_t half_code(bool bfloat16);
std::uint32_t top_k_code(double ratio, bool f16_values, double momentum);
std::string describe_codec(std::uint32_t code);  // "bfloat16", "TopK 1% in float16 with momentum"

}  // namespace taco::pg
