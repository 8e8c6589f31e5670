#include "base/env_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <string_view>

#include "base/core_list.h"
#include "base/parse_number.h"

namespace taco::env_internal {
namespace {

bool set_one_of(std::string& field, const std::string& value,
                std::initializer_list<std::string_view> choices) {
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) return false;
  field = value;
  return true;
}

// Names that another room registers (algorithms, congestion controls): the form is checked here,
// the existence where the registry is.
bool set_name(std::string& field, const std::string& value, std::string_view punctuation = "_") {
  const bool well_formed = std::all_of(value.begin(), value.end(), [&](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || punctuation.find(c) != punctuation.npos;
  });
  if (well_formed) field = value;
  return well_formed;
}

bool set_integer(std::int64_t& field, const std::string& value, std::int64_t least,
                 std::int64_t most) {
  const auto number = parse_number<std::int64_t>(value);
  if (!number || *number < least || *number > most) return false;
  field = *number;
  return true;
}

bool set_bool(bool& field, const std::string& value) {
  const auto is = [&](std::string_view word) { return value == word; };
  if (is("1") || is("true") || is("on") || is("yes")) {
    field = true;
    return true;
  }
  if (is("0") || is("false") || is("off") || is("no")) {
    field = false;
    return true;
  }
  return false;
}

// "a,b" or "^a,^b": allowed names, or forbidden ones; a mixture has no clear meaning.
bool set_interfaces(std::string& field, const std::string& value) {
  const bool forbids = value.front() == '^';
  std::size_t start = 0;
  while (start <= value.size()) {
    const std::size_t comma = std::min(value.find(',', start), value.size());
    std::string_view name(value.data() + start, comma - start);
    if (name.empty() || (name.front() == '^') != forbids) return false;
    if (forbids) name.remove_prefix(1);
    constexpr std::size_t kLongestName = 15;  // IFNAMSIZ - 1
    if (name.empty() || name.size() > kLongestName) return false;
    if (name.find_first_of(" /\t^") != std::string_view::npos) return false;
    start = comma + 1;
  }
  field = value;
  return true;
}

// "auto", "all", or one of several shares: "0/2" and "1/2".
bool set_share_of(std::string& field, const std::string& value) {
  const std::size_t slash = value.find('/');
  std::int64_t number = 0, shares = 0;
  const bool is_word = value == "auto" || value == "all";
  const bool is_share = slash != std::string::npos &&
                        set_integer(shares, value.substr(slash + 1), 1, 4096) &&
                        set_integer(number, value.substr(0, slash), 0, shares - 1);
  if (is_word || is_share) field = value;
  return is_word || is_share;
}

bool set_milliseconds(Duration& field, const std::string& value, std::int64_t least,
                      std::int64_t most) {
  std::int64_t milliseconds = 0;
  if (!set_integer(milliseconds, value, least, most)) return false;
  field = milliseconds * kMillisecond;
  return true;
}

// A plain decimal number in (0, 1].
bool set_share(double& field, const std::string& value) {
  const auto number = parse_number<double>(value);
  if (!number || !(*number > 0 && *number <= 1)) return false;
  field = *number;
  return true;
}

std::string show_share(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;

std::string show_bool(bool value) { return value ? "1" : "0"; }

constexpr auto kVariables = std::to_array<Variable>({
    {"TACO_LOG", "choice", "", "debug, info, warning, error or off",
     "The least serious level that is written to stderr.",
     [](Env& env, const std::string& value) {
       return set_one_of(env.log, value, {"debug", "info", "warning", "error", "off"});
     },
     [](const Env& env) { return env.log; }},
    {"TACO_TRANSPORT", "choice", "", "auto, shm or udp",
     "Forces one transport: shm for shared memory on one host, udp for packets everywhere.",
     [](Env& env, const std::string& value) {
       return set_one_of(env.transport, value, {"auto", "shm", "udp"});
     },
     [](const Env& env) { return env.transport; }},
    {"TACO_ALGORITHM", "name", "",
     "auto, an algorithm's name, or names by kind (all_reduce=ring,broadcast=binomial)",
     "Forces one collective algorithm where it applies, instead of the cheapest by the cost model.",
     [](Env& env, const std::string& value) { return set_name(env.algorithm, value, "_=,"); },
     [](const Env& env) { return env.algorithm; }},
    {"TACO_ISA", "choice", "", "auto, portable, avx2, avx512 or neon",
     "Forces the instruction set of the arithmetic; results are the same bits with each.",
     [](Env& env, const std::string& value) {
       return set_one_of(env.isa, value, {"auto", "portable", "avx2", "avx512", "neon"});
     },
     [](const Env& env) { return env.isa; }},
    {"TACO_IFNAME", "list", "",
     "interface names separated by commas, all plain (use these) or all with ^ (avoid these)",
     "Network interfaces to use or avoid; by default the one that leads to the master, and beside "
     "it all others that are ways of their own (no bridges, no tunnels).",
     [](Env& env, const std::string& value) { return set_interfaces(env.ifname, value); },
     [](const Env& env) { return env.ifname; }},
    {"TACO_HOST_ID", "text", "", "any text",
     "Replaces the identity of this host: ranks with equal identities may share memory.",
     [](Env& env, const std::string& value) {
       env.host_id = value;
       return true;
     },
     [](const Env& env) { return env.host_id; }},
    {"TACO_PEER_TIMEOUT_MS", "integer", "milliseconds", "an integer from 100 to 86400000",
     "How long a peer on another host may be silent before it counts as lost.",
     [](Env& env, const std::string& value) {
       return set_milliseconds(env.peer_timeout, value, 100, 86'400'000);
     },
     [](const Env& env) { return std::to_string(env.peer_timeout / kMillisecond); }},
    {"TACO_CHUNK_BYTES", "integer", "bytes", "an integer from 4096 to 1073741824",
     "The most a large step is cut into, so that receive, reduce and forward overlap.",
     [](Env& env, const std::string& value) {
       return set_integer(env.chunk_bytes, value, 4096, 1 << 30);
     },
     [](const Env& env) { return std::to_string(env.chunk_bytes); }},
    {"TACO_SPIN_US", "integer", "microseconds", "an integer from -1 to 1000000",
     "How long a waiting thread polls before it sleeps; -1 decides by cores and ranks.",
     [](Env& env, const std::string& value) {
       return set_integer(env.spin_us, value, -1, 1'000'000);
     },
     [](const Env& env) { return std::to_string(env.spin_us); }},
    {"TACO_SOCKET_BUFFER", "integer", "bytes", "0 or an integer up to 2147483647",
     "Kernel receive buffer of each UDP socket; 0 asks for 4 MiB. Unless privileged, a process "
     "gets no more than net.core.rmem_max.",
     [](Env& env, const std::string& value) {
       return set_integer(env.socket_buffer, value, 0, INT32_MAX);
     },
     [](const Env& env) { return std::to_string(env.socket_buffer); }},
    {"TACO_PORT", "integer", "", "an integer from 0 to 65535",
     "First UDP port that is tried, for firewalls; 0 takes any.",
     [](Env& env, const std::string& value) { return set_integer(env.port, value, 0, 65535); },
     [](const Env& env) { return std::to_string(env.port); }},
    {"TACO_MTU", "integer", "bytes", "0 or an integer from 1280 to 65535",
     "Largest IP packet to send; 0 takes the interface's. A path that carries less than 1,280 "
     "bytes "
     "fragments.",
     [](Env& env, const std::string& value) {
       return value == "0" ? set_integer(env.mtu, value, 0, 0)
                           : set_integer(env.mtu, value, 1280, 65535);
     },
     [](const Env& env) { return std::to_string(env.mtu); }},
    {"TACO_PATHS", "integer", "", "auto or an integer from 1 to 8",
     "Paths between two hosts by each pair of their interfaces: UDP ports, so that switches that "
     "spread flows over several links (ECMP) spread them too. Of several, one that is slow is "
     "moved to other ports, for which as many again are opened; a process opens 16 at most. auto: "
     "four where the way to MASTER_ADDR crosses a router and TACO_PORT is not set, but one to "
     "peers that no router is crossed to; else one.",
     [](Env& env, const std::string& value) {
       env.paths = 0;
       return value == "auto" || set_integer(env.paths, value, 1, 8);
     },
     [](const Env& env) { return env.paths == 0 ? "auto" : std::to_string(env.paths); }},
    {"TACO_CONGESTION", "name", "", "the name of a congestion control (lower case)",
     "Congestion control of sessions between hosts: swift, paced_swift or cubic (docs/wire.md).",
     [](Env& env, const std::string& value) { return set_name(env.congestion, value); },
     [](const Env& env) { return env.congestion; }},
    {"TACO_HARP_CONF", "path", "", "a file as harp-setup writes it, or none",
     "The host's settings, which variables override; /etc/taco/harp.conf by default, if it is "
     "there; "
     "none reads no file (docs/harp.md).",
     [](Env& env, const std::string& value) {
       env.harp_conf = value;
       return true;
     },
     [](const Env& env) { return env.harp_conf; }},
    {"TACO_HARP_DRIVER", "name", "", "the name of a driver (lower case)",
     "What packets between hosts leave and arrive by: udp is the kernel's UDP; xdp is AF_XDP, "
     "which needs rights; dpdk is DPDK's poll-mode drivers (docs/harp.md); auto is udp.",
     [](Env& env, const std::string& value) { return set_name(env.harp_driver, value); },
     [](const Env& env) { return env.harp_driver; }},
    {"TACO_HARP_XDP_QUEUES", "share", "", "auto, all or NUMBER/SHARES, as 0/2",
     "With TACO_HARP_DRIVER=xdp: which of an interface's queues this rank has, for its engines "
     "to part. all of them; of so many shares, counted from 0, the one with that number; auto: by "
     "LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them, all without (docs/harp.md).",
     [](Env& env, const std::string& value) { return set_share_of(env.harp_xdp_queues, value); },
     [](const Env& env) { return env.harp_xdp_queues; }},
    {"TACO_HARP_DPDK", "devices", "", "devices of DPDK and their addresses",
     "With TACO_HARP_DRIVER=dpdk: DEVICE[,ARGUMENTS] ADDRESS/PREFIX ... [gateway=ADDRESS] [mtu=N] "
     "[slots=N], semicolons between devices (docs/harp.md).",
     [](Env& env, const std::string& value) {
       env.harp_dpdk = value;
       return true;
     },
     [](const Env& env) { return env.harp_dpdk; }},
    {"TACO_HARP_DPDK_EAL", "arguments", "", "arguments of DPDK's, separated by spaces",
     "Given to DPDK's EAL behind those that taco chooses itself.",
     [](Env& env, const std::string& value) {
       env.harp_dpdk_eal = value;
       return true;
     },
     [](const Env& env) { return env.harp_dpdk_eal; }},
    {"TACO_HARP_POLL", "choice", "", "auto or always",
     "Whether an engine whose driver has to be polled ever sleeps: auto looks less and less often "
     "while there is no traffic, always takes a core.",
     [](Env& env, const std::string& value) {
       return set_one_of(env.harp_poll, value, {"auto", "always"});
     },
     [](const Env& env) { return env.harp_poll; }},
    {"TACO_HARP_ENGINES", "integer", "", "an integer from 1 to 64",
     "Engines of a process, each with a thread, ports and buffers of its own; a group has the one "
     "of its number, its large operations several. The same on all ranks (docs/harp.md).",
     [](Env& env, const std::string& value) { return set_integer(env.harp_engines, value, 1, 64); },
     [](const Env& env) { return std::to_string(env.harp_engines); }},
    {"TACO_HARP_CORES", "list", "", "different cores and ranges of them, as 2,5 or 4-7",
     "Pins the engines' threads, and has nobody else drive them: one core for each engine of each "
     "rank of the host, rank by rank (docs/harp.md). By default they are not pinned.",
     [](Env& env, const std::string& value) {
       if (!cores_from(value)) return false;
       env.harp_cores = value;
       return true;
     },
     [](const Env& env) { return env.harp_cores; }},
    {"TACO_HARP_SECURITY", "choice", "", "none, auth or encrypt",
     "What protects packets between hosts beside the handshake: checksums (none); authenticated "
     "encryption of control packets and small messages, checksums of other data (auth); or "
     "authenticated encryption of everything (encrypt). The same on all ranks (docs/harp.md).",
     [](Env& env, const std::string& value) {
       return set_one_of(env.harp_security, value, {"none", "auth", "encrypt"});
     },
     [](const Env& env) { return env.harp_security; }},
    {"TACO_HARP_CHECKSUM", "choice", "", "crc32c or kernel",
     "What finds damage to large messages between hosts: a CRC32C of every packet, header and "
     "payload (crc32c); or one of the header alone, while UDP's and the link's checksums are "
     "trusted with the payload, as TCP trusts them (kernel). The same on all ranks (docs/harp.md).",
     [](Env& env, const std::string& value) {
       return set_one_of(env.harp_checksum, value, {"crc32c", "kernel"});
     },
     [](const Env& env) { return env.harp_checksum; }},
    {"TACO_HARP_KEY_FILE", "path", "", "a file of 16 to 4096 bytes, for its owner alone (mode 600)",
     "A key of the job that the rendezvous store never sees: who can read the store, but not this "
     "file, cannot join or read. The same content on all ranks; none by default.",
     [](Env& env, const std::string& value) {
       env.harp_key_file = value;
       return true;
     },
     [](const Env& env) { return env.harp_key_file; }},
    {"TACO_TUNE", "boolean", "", "0, 1, false, true, off, on, no or yes",
     "The default group measures links and processors when it starts (some hundred ms); it and the "
     "groups made from it plan from that block instead of the built-in table. "
     "stats().planner_costs names the first one.",
     [](Env& env, const std::string& value) { return set_bool(env.tune, value); },
     [](const Env& env) { return show_bool(env.tune); }},
    {"TACO_CMA", "boolean", "", "0, 1, false, true, off, on, no or yes",
     "Pulls straight from a peer's memory on the same host, where the kernel allows it.",
     [](Env& env, const std::string& value) { return set_bool(env.cma, value); },
     [](const Env& env) { return show_bool(env.cma); }},
    {"LIGHT_2D_ALLREDUCE", "choice", "", "auto, 0 or 1",
     "The two-dimensional all_reduce (reduce-scatter inside each host, all-reduce between hosts, "
     "all-gather inside): auto where it is the fastest by the cost model, 1 wherever it fits, 0 "
     "never. Compressed gradients always travel that way; TACO_ALGORITHM comes first.",
     [](Env& env, const std::string& value) {
       return set_one_of(env.light_2d_all_reduce, value, {"auto", "0", "1"});
     },
     [](const Env& env) { return env.light_2d_all_reduce; }},
    {"LIGHT_INTRA_SIZE", "integer", "ranks", "an integer from 0 to 1000000",
     "How many ranks, one after the other host by host, are taken for one host by two-dimensional "
     "and compressed all_reduces; 0 takes the hosts as they are. It must divide the ranks of the "
     "default group. Other groups whose ranks it does not divide take the hosts.",
     [](Env& env, const std::string& value) {
       return set_integer(env.light_intra_size, value, 0, 1'000'000);
     },
     [](const Env& env) { return std::to_string(env.light_intra_size); }},
    {"LIGHT_HIERARCHICAL_THRESHOLD", "integer", "bytes", "an integer from 0 to 2^50",
     "The longest message for which LIGHT_2D_ALLREDUCE may be auto or 1; longer ones never take "
     "the "
     "two-dimensional all_reduce. Not set: no message is too long. Compressed gradients are not "
     "concerned.",
     [](Env& env, const std::string& value) {
       return set_integer(env.light_hierarchical_threshold, value, 0, kMaxBytes);
     },
     [](const Env& env) {
       const std::int64_t bytes = env.light_hierarchical_threshold;
       return bytes < 0 ? std::string() : std::to_string(bytes);
     }},
    {"LIGHT_TOPK_ALLREDUCE", "boolean", "", "0, 1, false, true, off, on, no or yes",
     "Sends between hosts only the largest elements of each gradient, and keeps the others for the "
     "next step (docs/lightcc.md).",
     [](Env& env, const std::string& value) { return set_bool(env.light_topk, value); },
     [](const Env& env) { return show_bool(env.light_topk); }},
    {"LIGHT_TOPK_RATIO", "number", "", "a number above 0 and at most 1",
     "Which share of a gradient's elements LIGHT_TOPK_ALLREDUCE sends.",
     [](Env& env, const std::string& value) { return set_share(env.light_topk_ratio, value); },
     [](const Env& env) { return show_share(env.light_topk_ratio); }},
    {"LIGHT_TOPK_THRESHOLD", "integer", "bytes", "an integer from 0 to 2^50",
     "The shortest gradient bucket that LIGHT_TOPK_ALLREDUCE is for; shorter ones are sent as "
     "LIGHT_WIRE_DTYPE says.",
     [](Env& env, const std::string& value) {
       return set_integer(env.light_topk_threshold, value, 0, kMaxBytes);
     },
     [](const Env& env) { return std::to_string(env.light_topk_threshold); }},
    {"LIGHT_TOPK_FP16", "boolean", "", "0, 1, false, true, off, on, no or yes",
     "Sends the elements that LIGHT_TOPK_ALLREDUCE chooses as scaled float16 instead of float32.",
     [](Env& env, const std::string& value) { return set_bool(env.light_topk_fp16, value); },
     [](const Env& env) { return show_bool(env.light_topk_fp16); }},
    {"LIGHT_WIRE_DTYPE", "choice", "", "float32, float16 or bfloat16",
     "As what gradients travel between hosts that are not sent by LIGHT_TOPK_ALLREDUCE; float32 is "
     "exact.",
     [](Env& env, const std::string& value) {
       return set_one_of(env.light_wire_dtype, value, {"float32", "float16", "bfloat16"});
     },
     [](const Env& env) { return env.light_wire_dtype; }},
    {"LIGHT_AUTO", "boolean", "", "0, 1, false, true, off, on, no or yes",
     "Chooses for each gradient bucket how it is sent, by what that should cost and what steps "
     "have taken: exact, or else what LIGHT_TOPK_ALLREDUCE and LIGHT_WIRE_DTYPE ask for, where it "
     "makes steps faster. All gradients stay exact if neither asks for anything.",
     [](Env& env, const std::string& value) { return set_bool(env.light_auto, value); },
     [](const Env& env) { return show_bool(env.light_auto); }},
    {"LIGHT_FUSION_BYTES", "integer", "bytes", "auto or an integer from 0 to 2^50",
     "How long a buffer lightcc.all_reduce_gradients() fills with small gradients, to send them "
     "together; 0 sends each on its own.",
     [](Env& env, const std::string& value) {
       if (value != "auto") return set_integer(env.light_fusion_bytes, value, 0, kMaxBytes);
       env.light_fusion_bytes = -1;
       return true;
     },
     [](const Env& env) {
       return env.light_fusion_bytes < 0 ? "auto" : std::to_string(env.light_fusion_bytes);
     }},
});

constexpr auto kListed = std::to_array<Listed>({
    {"HOROVOD_FUSION_THRESHOLD", "integer", "bytes", "67108864", "an integer from 0 to 2^50",
     "Tensors that are ready together are reduced in one buffer up to this size; 0: each alone. "
     "The same on all ranks."},
    {"HOROVOD_CYCLE_TIME", "number", "milliseconds", "1", "a number from 0 to 60000",
     "The time between two rounds of which the first brought nothing."},
    {"HOROVOD_CACHE_CAPACITY", "integer", "", "1024", "an integer from 0 to 1048576",
     "The operations that ranks agree on by a bit once they have seen them; 0: none. The same on "
     "all ranks."},
    {"HOROVOD_STALL_CHECK_TIME_SECONDS", "number", "seconds", "60", "a number from 0 to 10^9",
     "After this time a warning names a tensor that some ranks have not submitted, and which."},
    {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "number", "seconds", "0", "a number from 0 to 10^9",
     "After this time such a tensor is an error; 0: never."},
    {"HOROVOD_STALL_CHECK_DISABLE", "boolean", "", "0", "0, 1, false, true, off, on, no or yes",
     "Neither warning nor error."},
    {"HOROVOD_TIMELINE", "path", "", "", "a file, or dynamic",
     "Rank 0 writes there when operations were negotiated and run, in Chrome's trace format."},
    {"HOROVOD_TIMELINE_MARK_CYCLES", "boolean", "", "0", "0, 1, false, true, off, on, no or yes",
     "The timeline shows when rounds began."},
    {"HOROVOD_START_TIMEOUT", "number", "seconds", "300", "a number from 1 to 10^6",
     "How long init() waits for the other ranks. Of tacorun: how long for all hosts, 30 unless "
     "said."},
    {"HOROVOD_ELASTIC_TIMEOUT", "number", "seconds", "600", "a number from 1 on",
     "How long tacorun waits for hosts that an elastic job needs."},
});

}  // namespace

std::span<const Variable> variables() { return kVariables; }

std::span<const Listed> listed() { return kListed; }

}  // namespace taco::env_internal
