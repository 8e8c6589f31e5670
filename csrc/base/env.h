// Every environment variable the project reads, in one place: type, unit, default, meaning. Parsed
// once; a malformed value is an error that names it, an unknown TACO_* or LIGHT_* name warns
// with the nearest known one. docs/environment.md is generated from the table in env_table.cc,
// which also lists the variables HOROVOD_* that Python reads by itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace taco {

struct Env {
  std::string log = "info";              // TACO_LOG: debug|info|warning|error|off
  std::string transport = "auto";        // TACO_TRANSPORT: auto|shm|udp
  std::string algorithm = "auto";        // TACO_ALGORITHM: auto or an algorithm's name
  std::string isa = "auto";              // TACO_ISA: auto|portable|avx2|avx512|neon
  std::string ifname;                    // TACO_IFNAME: "eth0,eth1" or "^docker0,^lo"
  std::string host_id;                   // TACO_HOST_ID: overrides the host identity
  Duration peer_timeout = 10 * kSecond;  // TACO_PEER_TIMEOUT_MS
  std::int64_t chunk_bytes = 1 << 20;    // TACO_CHUNK_BYTES
  std::int64_t spin_us = -1;             // TACO_SPIN_US: -1 decides by cores
  std::int64_t socket_buffer = 0;        // TACO_SOCKET_BUFFER: bytes, 0 asks for the most allowed
  std::int64_t port = 0;                 // TACO_PORT: first UDP port, 0 any
  std::int64_t mtu = 0;                  // TACO_MTU: 0 takes the interface's
  std::int64_t paths = 0;                // TACO_PATHS: UDP ports at each address; auto: 0
  std::string congestion = "swift";      // TACO_CONGESTION: name of the congestion control
  std::string harp_conf;                 // TACO_HARP_CONF: path; empty: the host's own place
  std::string harp_driver = "auto";      // TACO_HARP_DRIVER: auto|udp|xdp|dpdk
  std::string harp_dpdk;                 // TACO_HARP_DPDK: devices and their addresses
  std::string harp_dpdk_eal;             // TACO_HARP_DPDK_EAL: more arguments for EAL
  std::string harp_xdp_queues = "auto";  // TACO_HARP_XDP_QUEUES: auto|all|NUMBER/SHARES
  std::string harp_poll = "auto";        // TACO_HARP_POLL: auto|always
  std::int64_t harp_engines = 1;         // TACO_HARP_ENGINES: engines of a process
  std::string harp_cores;                // TACO_HARP_CORES: "2,5" or "4-7"; empty: not pinned
  std::string harp_security = "auth";    // TACO_HARP_SECURITY: none|auth|encrypt
  std::string harp_checksum = "crc32c";  // TACO_HARP_CHECKSUM: crc32c|kernel
  std::string harp_key_file;             // TACO_HARP_KEY_FILE: path; empty: none
  bool tune = false;                     // TACO_TUNE: measure links instead of assuming them
  bool cma = true;  // TACO_CMA: pull straight from a peer's memory where allowed
  // LightCC: fewer bytes between hosts.
  std::string light_2d_all_reduce = "auto";        // LIGHT_2D_ALLREDUCE: auto|0|1
  std::int64_t light_intra_size = 0;               // LIGHT_INTRA_SIZE: ranks; 0 the host
  std::int64_t light_hierarchical_threshold = -1;  // LIGHT_HIERARCHICAL_THRESHOLD: bytes; -1 any
  bool light_topk = false;                         // LIGHT_TOPK_ALLREDUCE
  double light_topk_ratio = 0.01;                  // LIGHT_TOPK_RATIO: in (0, 1]
  std::int64_t light_topk_threshold = 1 << 20;     // LIGHT_TOPK_THRESHOLD: bytes
  bool light_topk_fp16 = false;                    // LIGHT_TOPK_FP16
  std::string light_wire_dtype = "float32";        // LIGHT_WIRE_DTYPE: float32|float16|bfloat16
  bool light_auto = false;                         // LIGHT_AUTO: by predicted time
  std::int64_t light_fusion_bytes = -1;            // LIGHT_FUSION_BYTES: -1 auto, 0 none

  // The host's settings (base/conf_file.h) and the process's environment, parsed on first use. A
  // malformed value is the returned status, every time, until it is mended.
  static Result<Env> get();
  // For tests: parse the given NAME=value strings instead. Warnings are appended to `warnings`.
  static Result<Env> parse(const std::vector<std::string>& environment,
                           std::vector<std::string>* warnings);
  // The LIGHT_* variables, as the table has them: what ranks must agree on.
  struct Setting {
    std::string name, value;
  };
  std::vector<Setting> light_settings() const;
  // The table behind the docs and taco_torch.info: name, type, unit, default, meaning, value in
  // force.
  struct Row {
    std::string name, type, unit, fallback, meaning, value;
    bool is_set;
  };
  static std::vector<Row> table();
};

// docs/environment.md: the table without the values in force, so that it is the same on every
// machine.
std::string environment_markdown();

}  // namespace taco
