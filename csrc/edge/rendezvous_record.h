// The records, as bytes, that the ranks of a group exchange through the store: each rank's Hello,
// and rank 0's Table of all of them, or its Refusal. Values only; decode() trusts nothing it reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace taco::edge {

// A value that all ranks of a group must have equal, whether a variable or an option of the group's
// says it: the values are compared in full, in the order in which every rank of a version lists
// them.
struct Setting {
  std::string name;  // where this rank has it from: "TACO_ALGORITHM", "Options.algorithm"
  std::string value;
};

struct Hello {
  std::string format;   // what encode() writes; another version may write another one
  std::string token;    // random; fresh for every rendezvous of every incarnation
  std::string version;  // of taco_torch
  std::vector<Setting> settings;
  std::string host;                  // host identity
  std::string address;               // of the Stack
  std::vector<std::string> further;  // addresses of the process's other Stacks that it brings
  double gbits = 0;                  // speed of the interface in use; 0: not known

  Hello();
  std::string encode() const;
  // All formats begin with these three, and must: of another format the rest stays empty, and
  // compare() says why there will be no group.
  static Result<Hello> decode(std::string_view bytes);
};

struct Table {
  std::uint64_t group_id = 0;
  std::string word;  // of rank 0, for all
  std::vector<Hello> ranks;

  std::string encode() const;
  static Result<Table> decode(std::string_view bytes);
  std::vector<int> host_of_rank() const;   // dense, in order of first appearance
  std::vector<double> host_gbits() const;  // by that index; the first speed known of each host
};

// Rank 0 sends this in place of a Table when there will be no group. All versions read the same
// bytes.
struct Refusal {
  Status why;
  int readers = 0;  // how many ranks it is for

  std::string encode() const;
  static std::optional<Refusal> decode(std::string_view bytes);  // nothing if they are none
};

// A rank that the program itself brings to the others, as text (edge/roster.h).
struct MemberHandle {
  std::string job;   // all that come by one store are of one job
  Hello hello;       // its token names the rank's group for as long as that lives
  std::string word;  // as Table::word, if it becomes rank 0's

  std::string encode() const;
  // kInvalidArgument: no handle, or a damaged one; kVersionMismatch: another version's.
  static Result<MemberHandle> decode(std::string_view text);
};

std::string random_token();  // 32 hexadecimal digits

// Why `theirs` cannot work with `ours`, or ok. The text names both sides.
Status compare(int our_rank, const Hello& ours, int their_rank, const Hello& theirs);

// Two ranks that came with one Stack are threads of one process that name their group differently:
// to each other they would not be peers. The text names them.
Status check_distinct(const std::vector<Hello>& ranks);

// "250 ms", "12.5 s".
std::string describe_duration(Duration duration);

// "1, 4 and 7"; more than a dozen are abbreviated with their count.
std::string list_of_ranks(const std::vector<int>& ranks);

}  // namespace taco::edge
