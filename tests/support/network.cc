#include "support/network.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

namespace taco::testing {

namespace {
bool run(const std::string& command) { return system((command + " >/dev/null 2>&1").c_str()) == 0; }

// A link that was set up has a carrier soon, not at once.
bool runs_soon(const std::string& space, const std::string& device = "eth0") {
  return run("for i in $(seq 200); do ip -n " + space + " -o link show dev " + device +
             " | grep -q 'state UP' && exit 0; sleep 0.05; done; exit 1");
}
}  // namespace

Network::Network(int hosts, std::string* why_not, int mtu) {
  if (geteuid() != 0) {
    *why_not = "network namespaces need root";
    return;
  }
  prefix_ = "tt" + std::to_string(getpid() % 100'000);
  subnet_ = getpid() % 250;
  const std::string bridge = prefix_ + "b";
  if (!run("ip netns add " + bridge)) {
    *why_not = "network namespaces cannot be made here";
    return;
  }
  hosts_.push_back(bridge);
  bool good = run("ip -n " + bridge + " link add br0 type bridge") &&
              run("ip -n " + bridge + " link set br0 up");
  std::vector<std::string> spaces;
  for (int i = 0; i < hosts && good; ++i) {
    const std::string space = prefix_ + "h" + std::to_string(i);
    const std::string port = "p" + std::to_string(i);
    good = run("ip netns add " + space);
    hosts_.push_back(space);
    spaces.push_back(space);
    good =
        good &&
        run("ip -n " + space + " link add eth0 mtu " + std::to_string(mtu) +
            " type veth peer name " + port + " mtu " + std::to_string(mtu) + " netns " + bridge) &&
        run("ip -n " + bridge + " link set " + port + " master br0 up") &&
        run("ip -n " + space + " link set lo up") &&
        run("ip -n " + space + " addr add " + address(i) + "/24 dev eth0") &&
        run("ip -n " + space + " link set eth0 up");
  }
  for (const std::string& space : spaces) good = good && runs_soon(space);
  if (!good) {
    *why_not = "the kernel lacks veth or bridge";
    return;
  }
  hosts_ = spaces;
  hosts_.push_back(bridge);  // last, so that ranks index hosts from 0
}

Network::~Network() {
  for (const std::string& space : hosts_) run("ip netns del " + space);
}

std::string Network::address(int host) const {
  return "10.77." + std::to_string(subnet_) + "." + std::to_string(host + 1);
}

bool Network::run_in(int host, const std::string& command) const {
  return run("ip netns exec " + hosts_[host] + " " + command);
}

bool Network::lay_cable(int queues) const {
  const std::string each =
      " numrxqueues " + std::to_string(queues) + " numtxqueues " + std::to_string(queues);
  bool good = run("ip -n " + hosts_[0] + " link add q0" + each + " type veth peer name q1" + each +
                  " netns " + hosts_[1]);
  for (const int host : {0, 1}) {
    const std::string in = "ip -n " + hosts_[host], device = " dev q" + std::to_string(host);
    const std::string address = "10.99.1." + std::to_string(host + 1) + "/24";
    good =
        good && run(in + " addr add " + address + device) && run(in + " link set" + device + " up");
  }
  return good && runs_soon(hosts_[0], "q0") && runs_soon(hosts_[1], "q1");
}

namespace {
std::string drop_everything_from(const std::string& device) {
  return "nft 'add table netdev cut; add chain netdev cut in { type filter hook ingress device " +
         device + " priority 0; policy drop; }'";
}
}  // namespace

bool Network::cut(int host) const {
  const int bridge = static_cast<int>(hosts_.size()) - 1;
  return run_in(host, drop_everything_from("eth0")) &&
         run_in(bridge, drop_everything_from("p" + std::to_string(host)));
}

bool Network::mend(int host) const {
  const int bridge = static_cast<int>(hosts_.size()) - 1;
  return run_in(host, "nft delete table netdev cut") &&
         run_in(bridge, "nft delete table netdev cut");
}

}  // namespace taco::testing
