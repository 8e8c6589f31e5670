#include "harp/drivers/xdp/bpf.h"

#include <errno.h>
#include <linux/if_link.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "base/assert.h"
#include "base/descriptors.h"

namespace taco::harp {

namespace {

constexpr std::size_t kProofText = 16'384;  // what the kernel says about a program
// BPF_F_XDP_HAS_FRAGS, which headers older than Linux 5.18 lack.
constexpr std::uint32_t kTakesSeveralPieces = 1 << 5;

// The kernel reads no more of the union than it is told.
int bpf(bpf_cmd command, bpf_attr& attribute) {
  return static_cast<int>(syscall(SYS_bpf, command, &attribute, sizeof attribute));
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

// The kernel refuses attributes that hold anything where the command looks for nothing, padding
// included.
bpf_attr nothing_asked() {
  bpf_attr attribute;
  memset(&attribute, 0, sizeof attribute);
  return attribute;
}

// An entry of a map. `other`: its value, or where the key after this one is to go, which the kernel
// has in one place.
bpf_attr entry_of(const OwnFd& map, const void* key, const void* other = nullptr) {
  bpf_attr attribute = nothing_asked();
  attribute.map_fd = static_cast<std::uint32_t>(map.get());
  attribute.key = address_of(key);
  attribute.value = address_of(other);
  return attribute;
}

// errno has the reason.
Status bpf_failure(const std::string& what) {
  const int error = errno;
  std::string text = what + ": " + system_error_text(error);
  if (error == EPERM || error == EACCES) {
    text +=
        " (needs CAP_BPF and CAP_NET_ADMIN, or root; in a container: outside of a user namespace)";
  }
  if (error == ENOSYS) text += " (this kernel has no bpf(2), or a sandbox keeps it away)";
  return Status(Code::kResource, text);
}

Status sharing_failure() {
  const int error = errno;
  std::string text = "a program for XDP that is there already cannot be looked at: ";
  text += system_error_text(error);
  if (error == EPERM) {
    text +=
        " (the first process of an interface needs CAP_BPF and CAP_NET_ADMIN, those that share its "
        "program CAP_SYS_ADMIN, or root)";
  }
  return Status(Code::kResource, text);
}

}  // namespace

void BpfProgram::append(int code, int to, int from, std::int16_t offset, std::int32_t number) {
  bpf_insn one{};
  one.code = static_cast<std::uint8_t>(code);
  one.dst_reg = static_cast<std::uint8_t>(to & 15);
  one.src_reg = static_cast<std::uint8_t>(from & 15);
  one.off = offset;
  one.imm = number;
  instructions_.push_back(one);
}

void BpfProgram::copy(int to, int from) { append(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
void BpfProgram::set(int to, std::int32_t number) {
  append(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, number);
}
void BpfProgram::add(int to, std::int32_t number) {
  append(BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, number);
}
void BpfProgram::add_register(int to, int from) {
  append(BPF_ALU64 | BPF_ADD | BPF_X, to, from, 0, 0);
}
void BpfProgram::mask(int to, std::int32_t number) {
  append(BPF_ALU64 | BPF_AND | BPF_K, to, 0, 0, number);
}
void BpfProgram::load(int size, int to, int base, std::int16_t offset) {
  append(BPF_LDX | BPF_MEM | size, to, base, offset, 0);
}
void BpfProgram::store(int size, int base, std::int16_t offset, int from) {
  append(BPF_STX | BPF_MEM | size, base, from, offset, 0);
}
void BpfProgram::store_number(int size, int base, std::int16_t offset, std::int32_t number) {
  append(BPF_ST | BPF_MEM | size, base, 0, offset, number);
}
// Takes the place of two instructions.
void BpfProgram::load_map(int to, const OwnFd& map) {
  append(BPF_LD | BPF_IMM | BPF_DW, to, BPF_PSEUDO_MAP_FD, 0, map.get());
  append(0, 0, 0, 0, 0);
}
void BpfProgram::jump_if(int comparison, int left, std::int32_t number, Label& to) {
  to.jumps.push_back(instructions_.size());
  append(BPF_JMP | comparison | BPF_K, left, 0, 0, number);
}
void BpfProgram::jump_if_register(int comparison, int left, int right, Label& to) {
  to.jumps.push_back(instructions_.size());
  append(BPF_JMP | comparison | BPF_X, left, right, 0, 0);
}
void BpfProgram::jump(Label& to) {
  to.jumps.push_back(instructions_.size());
  append(BPF_JMP | BPF_JA, 0, 0, 0, 0);
}
void BpfProgram::place(const Label& label) {
  for (const std::size_t from : label.jumps) {
    TACO_ASSERT(from < instructions_.size());
    instructions_[from].off = static_cast<std::int16_t>(instructions_.size() - from - 1);
  }
}
void BpfProgram::call(std::int32_t function) { append(BPF_JMP | BPF_CALL, 0, 0, 0, function); }
void BpfProgram::leave() { append(BPF_JMP | BPF_EXIT, 0, 0, 0, 0); }

Result<OwnFd> create_bpf_map(const BpfMapShape& shape) {
  bpf_attr attribute = nothing_asked();
  attribute.map_type = shape.type;
  attribute.key_size = shape.key_bytes;
  attribute.value_size = shape.value_bytes;
  attribute.max_entries = shape.entries;
  OwnFd map(bpf(BPF_MAP_CREATE, attribute));
  if (!map) return bpf_failure("the kernel makes no map for XDP");
  return map;
}

Status put_in_bpf_map(const OwnFd& map, const void* key, const void* value) {
  bpf_attr attribute = entry_of(map, key, value);
  attribute.flags = BPF_ANY;
  if (bpf(BPF_MAP_UPDATE_ELEM, attribute) != 0) return bpf_failure("a map for XDP takes no entry");
  return {};
}

void erase_from_bpf_map(const OwnFd& map, const void* key) {
  bpf_attr attribute = entry_of(map, key);
  bpf(BPF_MAP_DELETE_ELEM, attribute);
}

bool look_up_in_bpf_map(const OwnFd& map, const void* key, void* value) {
  bpf_attr attribute = entry_of(map, key, value);
  return bpf(BPF_MAP_LOOKUP_ELEM, attribute) == 0;
}

bool next_bpf_key(const OwnFd& map, const void* key, void* next) {
  bpf_attr attribute = entry_of(map, key, next);
  return bpf(BPF_MAP_GET_NEXT_KEY, attribute) == 0;
}

Result<OwnFd> open_bpf_object(BpfKind kind, std::uint32_t id) {
  bpf_attr attribute = nothing_asked();
  attribute.prog_id = id;  // in one place with those of maps and links
  const bpf_cmd command = kind == BpfKind::kProgram ? BPF_PROG_GET_FD_BY_ID
                          : kind == BpfKind::kMap   ? BPF_MAP_GET_FD_BY_ID
                                                    : BPF_LINK_GET_FD_BY_ID;
  OwnFd object(bpf(command, attribute));
  if (!object && errno != ENOENT && errno != EAGAIN) return sharing_failure();
  return object;
}

Result<std::uint32_t> next_bpf_link(std::uint32_t id) {
  bpf_attr attribute = nothing_asked();
  attribute.start_id = id;
  if (bpf(BPF_LINK_GET_NEXT_ID, attribute) == 0) return std::uint32_t{attribute.next_id};
  if (errno != ENOENT) return sharing_failure();
  return std::uint32_t{0};
}

bool describe_bpf_object(const OwnFd& object, void* about, std::uint32_t bytes) {
  bpf_attr attribute = nothing_asked();
  attribute.info.bpf_fd = static_cast<std::uint32_t>(object.get());
  attribute.info.info_len = bytes;
  attribute.info.info = address_of(about);
  return bpf(BPF_OBJ_GET_INFO_BY_FD, attribute) == 0;
}

std::optional<BpfTag> tag_of(const OwnFd& program) {
  bpf_prog_info about;
  memset(&about, 0, sizeof about);
  if (!describe_bpf_object(program, &about, sizeof about)) return std::nullopt;
  return std::to_array(about.tag);
}

// Frames of several pieces are since Linux 5.18: without them an interface
// with a large MTU refuses the program, and one with a small MTU has none.
Result<OwnFd> load_xdp_program(std::span<const bpf_insn> instructions, const char* name) {
  std::string proof(kProofText, '\0');
  const auto load = [&](std::uint32_t flags) {
    bpf_attr attribute = nothing_asked();
    attribute.prog_type = BPF_PROG_TYPE_XDP;
    attribute.insns = address_of(instructions.data());
    attribute.insn_cnt = static_cast<std::uint32_t>(instructions.size());
    attribute.license = address_of("BSD");
    attribute.log_level = 1;
    attribute.log_buf = address_of(proof.data());
    attribute.log_size = static_cast<std::uint32_t>(proof.size());
    attribute.prog_flags = flags;
    strncpy(attribute.prog_name, name, sizeof attribute.prog_name - 1);
    return bpf(BPF_PROG_LOAD, attribute);
  };
  OwnFd program(load(kTakesSeveralPieces));
  if (!program && errno == EINVAL) program = OwnFd(load(0));
  if (program) return program;
  Status failed = bpf_failure("the kernel does not take the program for XDP");
  const std::string said(proof.c_str());
  if (said.empty()) return failed;
  return Status(failed.code(), failed.message() + "; it says: " + said);
}

Result<OwnFd> attach_xdp_program(const OwnFd& program, std::uint32_t interface, XdpMode mode) {
  bpf_attr attribute = nothing_asked();
  attribute.link_create.prog_fd = static_cast<std::uint32_t>(program.get());
  attribute.link_create.target_ifindex = interface;
  attribute.link_create.attach_type = BPF_XDP;
  attribute.link_create.flags = mode == XdpMode::kNative ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE;
  OwnFd link(bpf(BPF_LINK_CREATE, attribute));
  if (link || errno == EBUSY || errno == EEXIST) return link;
  return bpf_failure(mode == XdpMode::kNative
                         ? "its driver takes no XDP program"
                         : "it takes no XDP program (Linux 5.9 or newer does)");
}

}  // namespace taco::harp
