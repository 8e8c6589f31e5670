// The part of bpf(2) that AF_XDP needs, by the system call itself: a hash of keys, a map of
// sockets, a program put together from instructions, and its place on an interface. No library, and
// no file compiled by another compiler.
//
// Any thread, one at a time.
#pragma once

#include <linux/bpf.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/own_fd.h"
#include "base/status.h"

namespace taco::harp {

// Puts instructions behind each other. Jumps go forward, to a label that is placed later.
class BpfProgram {
 public:
  struct Label {
    std::vector<std::size_t> jumps;
  };

  void copy(int to, int from);  // registers
  void set(int to, std::int32_t number);
  void add(int to, std::int32_t number);
  void add_register(int to, int from);
  void mask(int to, std::int32_t number);
  // `size`: BPF_B, BPF_H or BPF_W, of one, two or four bytes.
  void load(int size, int to, int base, std::int16_t offset);
  void store(int size, int base, std::int16_t offset, int from);
  void store_number(int size, int base, std::int16_t offset, std::int32_t number);
  void load_map(int to, const OwnFd& map);
  // `comparison`: BPF_JEQ, BPF_JNE, BPF_JGT, ...
  void jump_if(int comparison, int left, std::int32_t number, Label& to);
  void jump_if_register(int comparison, int left, int right, Label& to);
  void jump(Label& to);
  void place(const Label& label);  // here
  void call(std::int32_t function);
  void leave();

  std::span<const bpf_insn> instructions() const { return instructions_; }

 private:
  void append(int code, int to, int from, std::int16_t offset, std::int32_t number);

  std::vector<bpf_insn> instructions_;
};

struct BpfMapShape {
  bpf_map_type type = BPF_MAP_TYPE_UNSPEC;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
  std::uint32_t entries = 0;
  bool operator==(const BpfMapShape&) const = default;
};

// The kernel's digest of a program's instructions, whatever maps these use.
using BpfTag = std::array<std::uint8_t, BPF_TAG_SIZE>;

// Failures name the remedy where there is one: a right that is missing, a kernel that is too old.
Result<OwnFd> create_bpf_map(const BpfMapShape& shape);
Status put_in_bpf_map(const OwnFd& map, const void* key, const void* value);
void erase_from_bpf_map(const OwnFd& map, const void* key);
// False: the key is not there.
bool look_up_in_bpf_map(const OwnFd& map, const void* key, void* value);
// The key behind `key`, or the first (null). False: there is none.
bool next_bpf_key(const OwnFd& map, const void* key, void* next);

// The kernel numbers the objects that processes make; who opens one needs CAP_SYS_ADMIN.
enum class BpfKind { kProgram, kMap, kLink };
// An empty descriptor: it is gone by now.
Result<OwnFd> open_bpf_object(BpfKind kind, std::uint32_t id);
// The number of the link behind that one. 0: there is none.
Result<std::uint32_t> next_bpf_link(std::uint32_t id);
std::optional<BpfTag> tag_of(const OwnFd& program);
// Fills one of the kernel's bpf_..._info, whose pointers say where more is wanted.
bool describe_bpf_object(const OwnFd& object, void* about, std::uint32_t bytes);

// The kernel proves of a program that it ends and reads nothing that is not its own; if it cannot,
// the text says why.
Result<OwnFd> load_xdp_program(std::span<const bpf_insn> instructions, const char* name);

enum class XdpMode {
  kNative,   // in the interface's driver, before the kernel makes a packet of a frame
  kGeneric,  // behind it, with any driver
};
// The program runs on what arrives at the interface until the result is closed, by whatever end the
// process takes. Empty: another program is there. kResource: the interface or its driver refuses.
Result<OwnFd> attach_xdp_program(const OwnFd& program, std::uint32_t interface, XdpMode mode);

}  // namespace taco::harp
