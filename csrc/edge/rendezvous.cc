#include "edge/rendezvous.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/far_future.h"
#include "base/log.h"
#include "base/names.h"
#include "base/random.h"
#include "edge/rendezvous_record.h"
#include "edge/store_door.h"
#include "harp/engine/security_settings.h"

namespace taco::edge {
namespace {

// Between looks for a replaced hello: soon at first, and not so often while many ranks start.
constexpr Duration kAckSlice = 30 * kMillisecond, kLongestAckSlice = 500 * kMillisecond;
constexpr Duration kPatience = 20 * kSecond;  // before a warning names who is missing
constexpr Duration kGrace = 2 * kSecond;      // for rank 0's last word to be heard
constexpr Duration kDefaultTimeout = 1800 * kSecond;

// Never 0, which is nobody's.
std::uint64_t new_group_id(harp::Service service) {
  return harp::group_id(service, random_value<std::uint64_t>() | 1);
}

// One rank's side of one rendezvous; see the header for the keys.
class Rendezvous {
 public:
  Rendezvous(StoreDoor& door, const RendezvousOptions& options, Hello self, Time begin)
      : door_(door), options_(options), self_(std::move(self)), begin_(begin) {}

  Result<Table> run() { return options_.rank == 0 ? lead() : follow(); }

  // Rank 0 often serves the store, which ends with its process: it returns from here, whether to
  // raise an error or to go on and soon be done, once the others need no store any more.
  void stay_until_heard() {
    if (options_.rank == 0) door_.wait_until_gone(go_key(), monotonic_now() + kGrace);
  }

 private:
  static std::string hello_key(int rank) { return "taco/hello/" + std::to_string(rank); }
  static std::string welcome_key(const std::string& token) { return "taco/w/" + token; }
  std::string ack_key(int rank) const { return "taco/a/" + nonce_ + "/" + std::to_string(rank); }
  std::string go_key() const { return "taco/go/" + nonce_; }
  std::string done_key() const { return "taco/done/" + nonce_; }

  Result<Table> lead();
  Status read_hellos();
  Result<bool> read_hello(int rank);  // is there one?
  Status note_hello(int rank, const std::string& bytes);
  Status keep_absent(std::vector<int>* absent);
  Status collect_acks();
  Status welcome_successors(std::vector<int>* silent);
  void refuse_all(const Status& why);
  Status missing(const std::vector<int>& ranks, const char* what) const;
  std::string patience_text(const std::vector<int>& ranks) const;

  Result<Table> follow();
  Result<std::string> hear(const std::string& key, const char* what);
  void leave_no_keys(int readers);

  StoreDoor& door_;
  const RendezvousOptions& options_;
  Hello self_;
  Time begin_;
  std::string nonce_;
  std::vector<Hello> hellos_;  // rank 0: by rank
};

Status Rendezvous::missing(const std::vector<int>& ranks, const char* what) const {
  return Status(
      Code::kRendezvous,
      "group '" + options_.group + "': Timed out after " +
          describe_duration(monotonic_now() - begin_) + ": " +
          (ranks.size() == 1 ? "rank " : "ranks ") + list_of_ranks(ranks) + " of " +
          std::to_string(options_.world) + " did not " + what + " " + door_.where() +
          ". Check that every rank was started, with the same MASTER_ADDR, MASTER_PORT and "
          "WORLD_SIZE, and that none has failed before.");
}

std::string Rendezvous::patience_text(const std::vector<int>& ranks) const {
  return "group '" + options_.group + "' still waits for " +
         (ranks.size() == 1 ? "rank " : "ranks ") + list_of_ranks(ranks) + " at " + door_.where() +
         " after " + describe_duration(monotonic_now() - begin_);
}

// An empty one is none: its owner has deleted it since it was seen. That was the hello of a
// rendezvous that has ended, and the next follows.
Status Rendezvous::note_hello(int rank, const std::string& bytes) {
  if (bytes.empty()) return Status();
  Result<Hello> hello = Hello::decode(bytes);
  if (!hello.ok()) return hello.status().with_prefix("rank " + std::to_string(rank) + ": ");
  hellos_[rank] = std::move(hello).value();
  return compare(0, self_, rank, hellos_[rank]);
}

Result<bool> Rendezvous::read_hello(int rank) {
  Result<std::string> bytes = door_.look(hello_key(rank));
  if (!bytes.ok()) return bytes.status();
  TACO_RETURN_IF_ERROR(note_hello(rank, *bytes));
  return !bytes->empty();
}

Status Rendezvous::read_hellos() {
  std::vector<int> absent;
  std::vector<std::string> keys;
  for (int rank = 1; rank < options_.world; ++rank) {
    absent.push_back(rank);
    keys.push_back(hello_key(rank));
  }
  for (Time warn_at = begin_ + kPatience;; warn_at += 3 * kPatience) {
    Result<bool> all = door_.wait(keys, warn_at);
    if (!all.ok()) return all.status();
    if (*all) break;
    TACO_RETURN_IF_ERROR(keep_absent(&absent));
    if (!absent.empty() && door_.late()) return missing(absent, "reach");
    if (!absent.empty()) TACO_LOG_WARNING("edge", "%s", patience_text(absent).c_str());
  }
  Result<std::vector<std::string>> hellos = door_.get_all(keys);
  if (!hellos.ok()) return hellos.status();
  for (int rank = 1; rank < options_.world; ++rank)
    TACO_RETURN_IF_ERROR(note_hello(rank, (*hellos)[rank - 1]));
  return Status();
}

// Forgets those that have come. An early arrival that cannot work with us ends the wait for the
// others.
Status Rendezvous::keep_absent(std::vector<int>* absent) {
  std::vector<int> still;
  for (int rank : *absent) {
    Result<bool> here = read_hello(rank);
    if (!here.ok()) return here.status();
    if (!*here) still.push_back(rank);
  }
  absent->swap(still);
  return Status();
}

Status Rendezvous::collect_acks() {
  std::vector<int> silent;
  std::vector<std::string> welcomes, acks;
  for (int rank = 1; rank < options_.world; ++rank) {
    silent.push_back(rank);
    acks.push_back(ack_key(rank));
    if (!hellos_[rank].token.empty()) welcomes.push_back(welcome_key(hellos_[rank].token));
  }
  if (!welcomes.empty()) {
    const std::vector<std::string> nonces(welcomes.size(), nonce_);
    TACO_RETURN_IF_ERROR(door_.set_all(welcomes, nonces));
  }
  Time warn_at = begin_ + kPatience;
  for (Duration slice = kAckSlice;; slice = std::min(2 * slice, kLongestAckSlice)) {
    Result<bool> all = door_.wait(acks, monotonic_now() + slice);
    if (!all.ok()) return all.status();
    if (*all) return Status();
    TACO_RETURN_IF_ERROR(welcome_successors(&silent));
    if (!silent.empty() && door_.late()) return missing(silent, "answer through");
    if (!silent.empty() && monotonic_now() >= warn_at) {
      TACO_LOG_WARNING("edge", "%s", patience_text(silent).c_str());
      warn_at += 3 * kPatience;
    }
  }
}

// Forgets those that have answered. The hello of one that has not may have been a dead
// incarnation's; its successor replaces it.
Status Rendezvous::welcome_successors(std::vector<int>* silent) {
  std::vector<int> still;
  for (int rank : *silent) {
    Result<bool> here = door_.check({ack_key(rank)});
    if (!here.ok()) return here.status();
    if (*here) continue;
    still.push_back(rank);
    const std::string old_token = hellos_[rank].token;
    Result<bool> any = read_hello(rank);
    if (!any.ok()) return any.status();
    if (hellos_[rank].token == old_token) continue;
    TACO_RETURN_IF_ERROR(door_.set(welcome_key(hellos_[rank].token), nonce_));
  }
  silent->swap(still);
  return Status();
}

// Those who have arrived learn at once why there will be no group.
void Rendezvous::refuse_all(const Status& why) {
  std::vector<std::string> welcomes;
  for (int rank = 1; rank < options_.world; ++rank) {
    (void)read_hello(rank);
    if (!hellos_[rank].token.empty()) welcomes.push_back(welcome_key(hellos_[rank].token));
  }
  const Refusal refusal{why, static_cast<int>(welcomes.size())};
  if (welcomes.empty() || !door_.set(go_key(), refusal.encode()).ok()) return;
  (void)door_.set_all(welcomes, std::vector<std::string>(welcomes.size(), nonce_));
}

Result<Table> Rendezvous::lead() {
  nonce_ = random_token();
  hellos_.resize(options_.world);
  hellos_[0] = self_;
  Status status = read_hellos();
  if (status.ok()) status = collect_acks();
  if (status.ok()) status = check_distinct(hellos_);
  if (!status.ok()) {
    refuse_all(status);
    return status;
  }
  Table table;
  table.group_id = new_group_id(options_.service);
  table.ranks = hellos_;
  table.word = options_.word;
  TACO_RETURN_IF_ERROR(door_.set(go_key(), table.encode()));
  return table;
}

Result<std::string> Rendezvous::hear(const std::string& key, const char* what) {
  Result<std::string> answer = door_.hear(key);
  if (answer.ok() && answer->empty()) return missing({0}, what);
  return answer;
}

// Its own keys each rank deletes itself: its next hello cannot be taken for the old one. What all
// have read is deleted by the last of `readers`, for which rank 0 waits: nothing comes after it.
void Rendezvous::leave_no_keys(int readers) {
  door_.remove(hello_key(options_.rank));
  door_.remove(welcome_key(self_.token));
  door_.remove(ack_key(options_.rank));
  Result<std::int64_t> heard = door_.add(done_key(), 1);
  if (!heard.ok() || *heard != readers) return;
  door_.remove(done_key());
  door_.remove(go_key());
}

Result<Table> Rendezvous::follow() {
  TACO_RETURN_IF_ERROR(door_.set(hello_key(options_.rank), self_.encode()));
  Result<std::string> nonce = hear(welcome_key(self_.token), "answer through");
  if (!nonce.ok()) return nonce.status();
  nonce_ = *nonce;
  TACO_RETURN_IF_ERROR(door_.set(ack_key(options_.rank), "1"));
  Result<std::string> word = hear(go_key(), "open the group through");
  if (!word.ok()) return word.status();
  const std::optional<Refusal> refusal = Refusal::decode(*word);
  leave_no_keys(refusal ? refusal->readers : options_.world - 1);
  if (refusal) return refusal->why;
  return Table::decode(*word);
}

// Peers that have been added.
void release_peers(const EnginePeers& engine, int own) {
  for (int rank = 0; rank < static_cast<int>(engine.peers.size()); ++rank)
    if (rank != own) engine.stack->release_peer(engine.peers[rank]);
}

// The ranks' addresses on that engine, counted from the group's own.
Status add_peers(const Table& table, int own, std::size_t engine, EnginePeers& to) {
  for (int rank = 0; rank < static_cast<int>(table.ranks.size()); ++rank) {
    const Hello& hello = table.ranks[rank];
    const std::string who = "rank " + std::to_string(rank) + ": ";
    if (hello.further.size() < engine) {
      return Status(Code::kVersionMismatch,
                    who + "it has " + count_text(hello.further.size() + 1, "engine") +
                        " where others have more: give all ranks one TACO_HARP_ENGINES");
    }
    harp::PeerId peer = 0;
    if (rank != own) {
      Result<harp::PeerId> added =
          to.stack->add_peer(engine == 0 ? hello.address : hello.further[engine - 1]);
      if (!added.ok()) return added.status().with_prefix(who);
      peer = *added;
    }
    to.peers.push_back(peer);
  }
  return Status();
}

}  // namespace

Status enter_table(const Table& table, const RendezvousOptions& options, RendezvousResult* result) {
  if (static_cast<int>(table.ranks.size()) != options.world) {
    return Status(Code::kRendezvous,
                  "rank 0 counts " + std::to_string(table.ranks.size()) + " ranks in group '" +
                      options.group + "', rank " + std::to_string(options.rank) + " counts " +
                      std::to_string(options.world) + ": start all with one WORLD_SIZE");
  }
  result->group_id = table.group_id;
  result->word = table.word;
  result->host_of_rank = table.host_of_rank();
  result->host_gbits = table.host_gbits();
  std::vector<EnginePeers> engines = {{result->stack, {}}};
  for (const auto& stack : result->use->further()) engines.push_back({stack, {}});
  for (std::size_t engine = 0; engine < engines.size(); ++engine) {
    const Status added = add_peers(table, options.rank, engine, engines[engine]);
    if (added.ok()) continue;
    for (const EnginePeers& one : engines) release_peers(one, options.rank);
    return added;
  }
  result->peers = std::move(engines.front().peers);
  engines.erase(engines.begin());
  result->further = std::move(engines);
  return Status();
}

void bring_addresses(const StackUse& use, Hello& hello) {
  hello.address = use.stack()->address();
  hello.further.clear();
  for (const auto& stack : use.further()) hello.further.push_back(stack->address());
}

Result<Hello> hello_of(const StackUse& use, const std::vector<Setting>& settings) {
  Result<harp::SecuritySettings> security = harp::SecuritySettings::get();
  if (!security.ok()) return security.status();
  Hello hello;
  hello.token = random_token();
  hello.version = TACO_VERSION;
  hello.settings = settings;
  for (const harp::SecuritySettings::Setting& setting : security->settings()) {
    hello.settings.push_back({setting.name, setting.value});
  }
  hello.host = use.stack()->host();
  bring_addresses(use, hello);
  const auto interfaces = use.stack()->interfaces();
  hello.gbits = interfaces.empty() ? 0 : interfaces.front().mbits / 1000.0;
  return hello;
}

Result<RendezvousResult> rendezvous(const c10::intrusive_ptr<c10d::Store>& store,
                                    const RendezvousOptions& options) {
  RendezvousResult result;
  result.member = {options.group, options.world, options.rank};
  if (options.world == 1) {
    result.group_id = new_group_id(options.service);
    result.word = options.word;
    result.peers = {0};
    result.host_of_rank = {0};
    result.host_gbits = {0};
    return result;
  }
  const Time begin = monotonic_now();
  const Duration timeout = options.timeout > 0 ? options.timeout : kDefaultTimeout;
  StoreDoor door(store, later(later(begin, timeout), options.rank == 0 ? 0 : kGrace),
                 options.world);
  Result<std::shared_ptr<StackUse>> use =
      StackUse::take(door.host(), result.member, options.engines);
  if (!use.ok()) return use.status();
  result.use = std::move(use).value();
  result.stack = result.use->stack();
  Result<Hello> self = hello_of(*result.use, options.settings);
  if (!self.ok()) return self.status();
  Rendezvous side(door, options, std::move(self).value(), begin);
  Result<Table> table = side.run();
  Status status = table.ok() ? enter_table(*table, options, &result) : table.status();
  side.stay_until_heard();
  if (!status.ok()) return status;
  return result;
}

void release(RendezvousResult& result) {
  if (!result.stack) return;
  release_peers({result.stack, result.peers}, result.member.rank);
  for (const EnginePeers& engine : result.further) release_peers(engine, result.member.rank);
  result.further.clear();
  result.stack.reset();
  result.use.reset();
}

}  // namespace taco::edge
