#include "support/power_loss_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "support/sim_random.h"

namespace taco::testing {

using zerocache::Caching;
using zerocache::DirectoryLock;
using zerocache::File;
using zerocache::folder_of;
using zerocache::OpenMode;
using zerocache::system_error;

namespace {

constexpr std::uint64_t kSector = 512;

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

class PowerLossDisk::Random : public harp::SimRandom {
 public:
  using harp::SimRandom::SimRandom;
};

class MemoryFile : public File {
 public:
  MemoryFile(const std::string& path, PowerLossDisk& disk,
             std::shared_ptr<PowerLossDisk::Node> node)
      : File(path), disk_(disk), host_(disk.acting_), node_(std::move(node)) {}

  ssize_t read_at(std::byte* to, std::size_t bytes, std::uint64_t offset) override {
    return disk_.in_turn(host_, [&]() -> ssize_t {
      const std::uint64_t size = node_->content.size();
      if (offset >= size) return 0;
      const std::size_t got = std::min<std::uint64_t>(bytes, size - offset);
      std::memcpy(to, node_->content.data() + offset, got);
      return static_cast<ssize_t>(got);
    });
  }
  ssize_t write_at(const std::byte* from, std::size_t bytes, std::uint64_t offset) override {
    return disk_.in_turn(host_, [&] {
      disk_.changing();
      change({offset, {from, from + bytes}});
      return static_cast<ssize_t>(bytes);
    });
  }
  Result<std::uint64_t> size() override {
    return disk_.in_turn(
        host_, [&] { return Result<std::uint64_t>(std::uint64_t{node_->content.size()}); });
  }
  Status reserve(std::uint64_t bytes) override {
    return disk_.in_turn(host_, [&] {
      disk_.changing();
      change({bytes, {}, true});
      return Status();
    });
  }
  Status sync() override {
    return disk_.in_turn(host_, [&] {
      disk_.changing();
      if (disk_.sync_happens()) {
        node_->lasting = node_->content;
        node_->pending.clear();
      }
      return Status();
    });
  }

 private:
  void change(PowerLossDisk::Change change) {
    PowerLossDisk::apply(change, &node_->content);
    node_->pending.push_back(std::move(change));
  }

  PowerLossDisk& disk_;
  const int host_;
  const std::shared_ptr<PowerLossDisk::Node> node_;
};

// Takes its turn, and does what the disk does.
class PowerLossDisk::Host : public zerocache::FileSystem {
 public:
  Host(PowerLossDisk& disk, int number) : disk_(disk), number_(number) {}

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode,
                                     Caching caching) override {
    return disk_.in_turn(number_, [&] { return disk_.open(path, mode, caching); });
  }
  Status make_directory(const std::string& path) override {
    return disk_.in_turn(number_, [&] { return disk_.make_directory(path); });
  }
  Status rename(const std::string& from, const std::string& to) override {
    return disk_.in_turn(number_, [&] { return disk_.rename(from, to); });
  }
  Status remove(const std::string& path) override {
    return disk_.in_turn(number_, [&] { return disk_.remove(path); });
  }
  Status sync_directory(const std::string& path) override {
    return disk_.in_turn(number_, [&] { return disk_.sync_directory(path); });
  }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    return disk_.in_turn(number_, [&] { return disk_.list(directory); });
  }
  Result<std::unique_ptr<DirectoryLock>> lock(const std::string& directory) override {
    return disk_.in_turn(number_, [&] { return disk_.lock(directory); });
  }

 private:
  PowerLossDisk& disk_;
  const int number_;
};

PowerLossDisk::PowerLossDisk() : root_(std::make_shared<Node>()) { root_->is_directory = true; }
PowerLossDisk::~PowerLossDisk() = default;

zerocache::FileSystem& PowerLossDisk::host(int number) {
  std::lock_guard lock(mutex_);
  while (hosts_.size() <= static_cast<std::size_t>(number)) {
    hosts_.push_back(std::make_unique<Host>(*this, static_cast<int>(hosts_.size())));
  }
  return *hosts_[static_cast<std::size_t>(number)];
}

int PowerLossDisk::syncs(int host) const {
  const auto found = syncs_.find(host);
  return found == syncs_.end() ? 0 : found->second;
}

bool PowerLossDisk::sync_happens() {
  const int number = syncs_[acting_]++;
  return acting_ != forgetful_host || number != forgotten_sync;
}

void PowerLossDisk::apply(const Change& change, Bytes* content) {
  const std::uint64_t end = change.offset + change.bytes.size();
  if (content->size() < end) content->resize(end);
  std::copy(change.bytes.begin(), change.bytes.end(),
            content->begin() + static_cast<std::ptrdiff_t>(change.offset));
}

void PowerLossDisk::apply(const NameChange& change, Names* names) {
  for (const auto& [name, node] : change) {
    if (node == nullptr) {
      names->erase(name);
    } else {
      (*names)[name] = node;
    }
  }
}

void PowerLossDisk::sync_all() { sync_all(*root_); }

void PowerLossDisk::sync_all(Node& node) {
  node.lasting = node.content;
  node.pending.clear();
  node.lasting_names = node.names;
  node.pending_names.clear();
  for (const auto& [name, child] : node.names) sync_all(*child);
}

std::shared_ptr<PowerLossDisk::Node> PowerLossDisk::survivor(const Node& node,
                                                             const Chances& chances,
                                                             Random& random) {
  auto left = std::make_shared<Node>();
  left->is_directory = node.is_directory;
  left->lasting = node.lasting;
  for (const Change& change : node.pending) {
    if (change.is_length) {
      if (random.chance(chances.of_sector)) apply(change, &left->lasting);
      continue;
    }
    for (std::uint64_t at = 0; at < change.bytes.size(); at += kSector) {
      if (!random.chance(chances.of_sector)) continue;
      const auto first = change.bytes.begin() + static_cast<std::ptrdiff_t>(at);
      const std::uint64_t bytes = std::min<std::uint64_t>(kSector, change.bytes.size() - at);
      apply({change.offset + at, {first, first + static_cast<std::ptrdiff_t>(bytes)}},
            &left->lasting);
    }
  }
  left->content = left->lasting;
  Names names = node.lasting_names;
  for (const auto& [host, change] : node.pending_names) {
    if (random.chance(chances.of_name)) apply(change, &names);
  }
  for (const auto& [name, child] : names) {
    left->names[name] = survivor(*child, chances, random);
  }
  left->lasting_names = left->names;
  return left;
}

std::unique_ptr<PowerLossDisk> PowerLossDisk::after_power_loss(std::uint64_t seed) const {
  Random random(seed);
  // All of it, none of it and anything between.
  static constexpr double kChances[] = {0, 0.5, 0.9, 1};
  const Chances chances = {kChances[random.below(4)], kChances[random.below(4)]};
  auto disk = std::make_unique<PowerLossDisk>();
  disk->root_ = survivor(*root_, chances, random);
  return disk;
}

std::shared_ptr<PowerLossDisk::Node> PowerLossDisk::find(const std::string& path) const {
  std::shared_ptr<Node> node = root_;
  for (std::size_t at = 1; at < path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const auto found = node->names.find(path.substr(at, end - at));
    if (found == node->names.end()) return nullptr;
    node = found->second;
    at = end + 1;
  }
  return node;
}

Result<std::shared_ptr<PowerLossDisk::Node>> PowerLossDisk::directory_of(
    const std::string& path) const {
  std::shared_ptr<Node> node = find(folder_of(path));
  if (node == nullptr || !node->is_directory) return system_error(ENOENT, path);
  return node;
}

void PowerLossDisk::change_names(Node& directory, const NameChange& change) {
  apply(change, &directory.names);
  directory.pending_names.push_back({acting_, change});
}

Result<std::unique_ptr<File>> PowerLossDisk::open(const std::string& path, OpenMode mode, Caching) {
  auto directory = directory_of(path);
  if (!directory.ok()) return directory.status();
  std::shared_ptr<Node> node = find(path);
  if (mode == OpenMode::kRead && node == nullptr) return system_error(ENOENT, "opening " + path);
  if (mode == OpenMode::kCreate) {
    if (node != nullptr) return system_error(EEXIST, "making " + path);
    changing();
    node = std::make_shared<Node>();
    change_names(*directory.value(), {{last_part(path), node}});
  }
  return std::unique_ptr<File>(new MemoryFile(path, *this, node));
}

Status PowerLossDisk::make_directory(const std::string& path) {
  auto parent = directory_of(path);
  if (!parent.ok()) return parent.status();
  if (find(path) != nullptr) return {};
  changing();
  auto node = std::make_shared<Node>();
  node->is_directory = true;
  change_names(*parent.value(), {{last_part(path), node}});
  return {};
}

Status PowerLossDisk::rename(const std::string& from, const std::string& to) {
  auto directory = directory_of(from);
  if (!directory.ok()) return directory.status();
  const std::shared_ptr<Node> node = find(from);
  if (node == nullptr || folder_of(from) != folder_of(to)) return system_error(ENOENT, from);
  changing();
  change_names(*directory.value(), {{last_part(from), nullptr}, {last_part(to), node}});
  return {};
}

Status PowerLossDisk::remove(const std::string& path) {
  auto directory = directory_of(path);
  if (!directory.ok()) return directory.status();
  if (find(path) == nullptr) return {};
  changing();
  change_names(*directory.value(), {{last_part(path), nullptr}});
  return {};
}

Status PowerLossDisk::sync_directory(const std::string& path) {
  const std::shared_ptr<Node> node = find(path);
  if (node == nullptr) return system_error(ENOENT, path);
  changing();
  if (!sync_happens()) return {};
  std::erase_if(node->pending_names, [&](const PendingName& pending) {
    if (pending.host != acting_) return false;
    apply(pending.change, &node->lasting_names);
    return true;
  });
  return {};
}

Result<std::vector<std::string>> PowerLossDisk::list(const std::string& directory) {
  const std::shared_ptr<Node> node = find(directory);
  if (node == nullptr) return system_error(ENOENT, directory);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->names) names.push_back(name);
  return names;
}

Result<std::unique_ptr<DirectoryLock>> PowerLossDisk::lock(const std::string&) {
  return std::make_unique<DirectoryLock>();
}

}  // namespace taco::testing
