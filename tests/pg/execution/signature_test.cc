#include "pg/execution/signature.h"

#include <gtest/gtest.h>

#include "pg/codec.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using kernels::ReduceOp;

OperationSpec all_reduce(std::size_t count, Dtype dtype = Dtype::kF32,
                         ReduceOp op = ReduceOp::kSum) {
  OperationSpec spec{.kind = Kind::kAllReduce, .dtype = dtype, .op = op};
  spec.inputs = spec.outputs = {{nullptr, count * kernels::size_of(dtype)}};
  return spec;
}

TEST(Signature, CanBeReadBack) {
  EXPECT_EQ(describe_signature(signature_of(all_reduce(4))), "all_reduce SUM float32 x 4");
  EXPECT_EQ(describe(all_reduce(std::size_t{3} << 30, Dtype::kF64, ReduceOp::kMax)),
            "all_reduce MAX float64 x 3221225472");
  OperationSpec broadcast{.kind = Kind::kBroadcast, .dtype = Dtype::kI64, .root = 900};
  broadcast.outputs = {{nullptr, 80}};
  EXPECT_EQ(describe(broadcast), "broadcast int64 x 10 root 900");
}

TEST(Signature, DiffersWhereverTheCallDiffers) {
  const std::uint64_t base = signature_of(all_reduce(4));
  EXPECT_NE(base, signature_of(all_reduce(3)));
  EXPECT_NE(base, signature_of(all_reduce(4, Dtype::kI32)));
  EXPECT_NE(base, signature_of(all_reduce(4, Dtype::kF32, ReduceOp::kAvg)));
  OperationSpec reduce = all_reduce(4);
  reduce.kind = Kind::kReduce;
  EXPECT_NE(base, signature_of(reduce));
  OperationSpec other_root = reduce;
  other_root.root = 1;
  EXPECT_NE(signature_of(reduce), signature_of(other_root));
  OperationSpec even{.kind = Kind::kAllGather, .dtype = Dtype::kU8};
  even.outputs = {{nullptr, 4}, {nullptr, 4}};
  OperationSpec uneven = even;
  uneven.outputs = {{nullptr, 3}, {nullptr, 5}};
  OperationSpec swapped = even;
  swapped.outputs = {{nullptr, 5}, {nullptr, 3}};
  EXPECT_NE(signature_of(even), signature_of(uneven));
  EXPECT_NE(signature_of(uneven), signature_of(swapped));
}

class NamedCodec final : public Codec {
 public:
  NamedCodec(const char* name, std::uint32_t code) : name_(name), code_(code) {}
  const char* name() const override { return name_; }
  std::uint64_t most(std::uint64_t bytes) const override { return bytes; }
  double bytes_per_second() const override { return 1; }
  std::uint32_t code() const override { return code_ == 0 ? Codec::code() : code_; }
  Result<std::size_t> encode(Coding&, std::size_t) const override { return std::size_t{0}; }
  Result<std::size_t> decode(Coding&, std::size_t) const override { return std::size_t{0}; }

 private:
  const char* name_;
  const std::uint32_t code_;
};

OperationSpec coded(std::uint32_t code, const char* name = "", std::size_t count = 4) {
  OperationSpec spec = all_reduce(count, Dtype::kF32, ReduceOp::kAvg);
  spec.codec = std::make_shared<const NamedCodec>(name, code);
  return spec;
}

TEST(Signature, TellsByWhichCodec) {
  EXPECT_EQ(describe(coded(half_code(true))), "all_reduce AVG float32 x 4 coded as bfloat16");
  EXPECT_EQ(describe(coded(half_code(false))), "all_reduce AVG float32 x 4 coded as float16");
  const char* const with = "all_reduce AVG float32 x 9 coded as TopK 1% in float16 with momentum";
  EXPECT_EQ(describe(coded(top_k_code(0.01, true, 0.9), "", 9)), with);
  EXPECT_EQ(describe_codec(top_k_code(0.25, false, 0)), "TopK 25%");
  EXPECT_EQ(describe_codec(top_k_code(1, false, 0)), "TopK 100%");
  EXPECT_EQ(describe_codec(top_k_code(0.001, false, 0)), "TopK 0.1%");
  EXPECT_NE(describe(coded(0, "a")).find("coded as codec number "), std::string::npos);
}

TEST(Signature, DiffersWhereCodecsDo) {
  OperationSpec exact = all_reduce(4, Dtype::kF32, ReduceOp::kAvg);
  const std::vector<std::uint64_t> all = {signature_of(exact),
                                          signature_of(coded(half_code(true))),
                                          signature_of(coded(half_code(false))),
                                          signature_of(coded(half_code(false), "", 5)),
                                          signature_of(coded(top_k_code(0.01, false, 0))),
                                          signature_of(coded(top_k_code(0.0101, false, 0))),
                                          signature_of(coded(top_k_code(0.01, true, 0))),
                                          signature_of(coded(top_k_code(0.01, false, 0.9))),
                                          signature_of(coded(top_k_code(1e-7, false, 0.9))),
                                          signature_of(coded(0, "a")),
                                          signature_of(coded(0, "b"))};
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) EXPECT_NE(all[a], all[b]) << a << " " << b;
  EXPECT_EQ(signature_of(coded(0, "a")), signature_of(coded(0, "a")));
  exact.codec = nullptr;
  EXPECT_EQ(signature_of(exact), all[0]);
}

TEST(Signature, of_a_coded_gradient_its_ranks_compare_scale_and_fates) {
  OperationSpec plain = coded(half_code(true)), scaled = plain, fated = plain;
  scaled.scaled = true;
  fated.fates = true;
  EXPECT_EQ(describe(scaled), "all_reduce AVG float32 x 4 coded as bfloat16 of a scaled loss");
  EXPECT_EQ(describe(fated), describe(plain));
  EXPECT_NE(signature_of(fated), signature_of(plain));
  const auto beside = [&](const OperationSpec& a, const OperationSpec& b) {
    return describe_beside(signature_of(a), signature_of(b));
  };
  EXPECT_NE(beside(plain, scaled).find("all ranks or none must scale"), std::string::npos);
  EXPECT_NE(beside(fated, plain).find("applied, skipped or thrown away"), std::string::npos);
  EXPECT_EQ(beside(plain, plain), describe(plain));
}

OperationSpec coded_reduce_scatter(std::vector<std::size_t> counts, std::uint32_t code) {
  OperationSpec spec = coded(code);
  spec.kind = Kind::kReduceScatter;
  spec.inputs.clear();
  for (const std::size_t count : counts) spec.inputs.push_back({nullptr, count * sizeof(float)});
  return spec;
}

TEST(Signature, OfACodedReduceScatterTellsCodecAndBlocks) {
  const std::uint32_t bf16 = half_code(true);
  EXPECT_EQ(describe(coded_reduce_scatter({7, 7, 7}, bf16)),
            "reduce_scatter AVG float32 x 7 coded as bfloat16");
  EXPECT_NE(describe(coded_reduce_scatter({7, 8}, bf16)).find("with uneven sizes (hash "),
            std::string::npos);
  OperationSpec exact = coded_reduce_scatter({7, 8}, bf16);
  exact.codec = nullptr;
  const std::vector<std::uint64_t> all = {
      signature_of(exact),
      signature_of(coded_reduce_scatter({7, 8}, bf16)),
      signature_of(coded_reduce_scatter({8, 7}, bf16)),
      signature_of(coded_reduce_scatter({7, 7}, bf16)),
      signature_of(coded_reduce_scatter({8, 8}, bf16)),
      signature_of(coded_reduce_scatter({7, 8}, half_code(false)))};
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) EXPECT_NE(all[a], all[b]) << a << " " << b;
}

TEST(Signature, OfCodedOperationsTellsSizesApartUpToMany) {
  const std::size_t many = std::size_t{1} << 31;
  EXPECT_NE(signature_of(coded(half_code(true), "", many - 3)),
            signature_of(coded(half_code(true), "", many - 2)));
  EXPECT_NE(describe(coded(half_code(true), "", many + 7)).find("x 2147483647 or more coded"),
            std::string::npos);
}

TEST(Signature, ASendAndItsReceiveAreAlike) {
  OperationSpec send{.kind = Kind::kSend, .dtype = Dtype::kF32, .root = 1};
  send.inputs = {{nullptr, 8}};
  OperationSpec receive{.kind = Kind::kRecv, .dtype = Dtype::kF32, .root = 0};
  receive.outputs = {{nullptr, 8}};
  EXPECT_EQ(signature_of(send), signature_of(receive));
  receive.dtype = Dtype::kI32;
  EXPECT_NE(signature_of(send), signature_of(receive));
}

OperationSpec rooted(int root, std::size_t count = 10) {
  OperationSpec spec{.kind = Kind::kBroadcast, .dtype = Dtype::kU8, .root = root};
  spec.outputs = {{nullptr, count}};
  return spec;
}

TEST(Signature, NoRootIsTakenForAnother) {
  for (const int root : {0, 1, 1023, 65'535, 65'536, 1 << 30}) {
    for (const int distance : {1, 1024, 4096, 65'536, 1 << 20}) {
      EXPECT_NE(signature_of(rooted(root)), signature_of(rooted(root + distance)))
          << root << " and " << distance << " more";
    }
  }
  EXPECT_EQ(describe(rooted(40'000)), "broadcast uint8 x 10 root 40000");
  EXPECT_EQ(describe(rooted(1 << 20)).find("broadcast uint8 of a size or root too large"), 0u);
}

TEST(Signature, NoSizeIsTakenForAnother) {
  for (const int shift : {0, 20, 34, 35, 36, 37, 45}) {
    for (const int distance : {1, 30, 35, 36, 40}) {
      const std::size_t count = std::size_t{1} << shift;
      EXPECT_NE(signature_of(rooted(3, count)),
                signature_of(rooted(3, count + (std::size_t{1} << distance))))
          << "2^" << shift << " and 2^" << distance << " more";
    }
  }
}

TEST(Signature, BlocksThatOnlyTheirOwnerKnowsAreToldFromEqualOnes) {
  OperationSpec in_blocks{.kind = Kind::kAllToAll, .dtype = Dtype::kF32};
  in_blocks.inputs = {{nullptr, 4}, {nullptr, 8}};
  OperationSpec equal = in_blocks;
  equal.inputs = {{nullptr, 8}, {nullptr, 8}};
  equal.equal_splits = true;
  const std::uint64_t a = signature_of(in_blocks), b = signature_of(equal);
  EXPECT_NE(a, b);
  EXPECT_EQ(describe_signature(a), "all_to_all float32 in blocks");
  EXPECT_NE(describe_beside(a, b).find("either all ranks pass split sizes or none"),
            std::string::npos);
  EXPECT_EQ(describe_beside(a, a), describe_signature(a));
}

}  // namespace
}  // namespace taco::pg
