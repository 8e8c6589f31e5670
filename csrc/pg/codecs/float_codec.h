// The common part of the codecs of this folder: their elements are float32, and what they code is
// counted (pg/codecs/coding_stats.h).
#pragma once

#include <string>

#include "pg/codec.h"

namespace taco::pg {

class FloatCodec : public Codec {
 public:
  const char* name() const final { return name_.c_str(); }
  // kInvalidArgument where elements are not float32; kInternal where there is too little room.
  Result<std::size_t> encode(Coding& coding, std::size_t budget) const final;
  Result<std::size_t> decode(Coding& coding, std::size_t budget) const final;

 protected:
  explicit FloatCodec(std::string name) : name_(std::move(name)) {}

  // As encode() and decode(), of float32 elements in whole numbers.
  virtual Result<std::size_t> encode_floats(Coding& coding, std::size_t budget) const = 0;
  virtual Result<std::size_t> decode_floats(Coding& coding, std::size_t budget) const = 0;

 private:
  Status check(const Coding& coding, std::size_t bytes) const;

  const std::string name_;
};

// Whether decoding adds: to decode and reduce is here to decode and add.
bool adds(const Coding& coding);

}  // namespace taco::pg
