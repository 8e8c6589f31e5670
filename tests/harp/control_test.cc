#include "harp/control.h"

#include <gtest/gtest.h>

#include <vector>

namespace taco::harp {
namespace {

std::vector<Control> one_of_each() {
  const MessageKey key{11, 12};
  const SlotId slot{13, 14};
  return {CancelReceive{key, slot}, CancelSend{key, slot}, CancelOffer{key},
          VoidWant{key, slot},      Solicit{key},          VoidSolicit{key},
          EagerConsumed{11, 7, 8},  Blocked{11, true},     MismatchAtReceive{key, slot, 9},
          MismatchAtSend{key, 9}};
}

TEST(Control, EachKindComesBackFromItsFields) {
  const std::vector<Control> all = one_of_each();
  ASSERT_EQ(all.size(), std::variant_size_v<Control>);
  for (std::size_t kind = 0; kind < all.size(); ++kind) {
    ASSERT_EQ(all[kind].index(), kind);
    const std::optional<Control> back = control_of(fields_of(all[kind]));
    ASSERT_TRUE(back.has_value()) << kind;
    EXPECT_EQ(back->index(), kind);
    EXPECT_EQ(fields_of(*back), fields_of(all[kind])) << kind;
  }
}

// Peers of other builds read these fields: docs/wire.md.
TEST(Control, FieldsSayWhatTheyAlwaysSaid) {
  using Fields = ControlFields;
  const MessageKey key{11, 12};
  const SlotId slot{13, 14}, none{UINT32_MAX, 0};
  const std::vector<Fields> expected = {
      {key, slot, 0, Fields::Kind{0}},   {key, slot, 0, Fields::Kind{1}},
      {key, none, 0, Fields::Kind{1}},   {key, slot, 0, Fields::Kind{2}},
      {key, {}, 0, Fields::Kind{3}},     {key, {}, 1, Fields::Kind{3}},
      {{11, 7}, {}, 8, Fields::Kind{4}}, {{11, 1}, {}, 0, Fields::Kind{5}},
      {key, slot, 9, Fields::Kind{6}},   {key, none, 9, Fields::Kind{6}}};
  const std::vector<Control> all = one_of_each();
  ASSERT_EQ(all.size(), expected.size());
  for (std::size_t kind = 0; kind < all.size(); ++kind) {
    EXPECT_EQ(fields_of(all[kind]), expected[kind]) << kind;
  }
  EXPECT_EQ(fields_of(Blocked{11, false}).key.tag, 0u);
}

TEST(Control, AnUnknownKindIsNone) {
  EXPECT_FALSE(control_of({.kind = ControlFields::Kind{7}}).has_value());
}

}  // namespace
}  // namespace taco::harp
