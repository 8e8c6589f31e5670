// A disk in memory that can lose power: of what was not made to last, a part is then there, chosen
// at random and in no order. Writes last, sector by sector, once their file was synced; names, by
// ones and twos, once their directory was.
//
// Several hosts may share it, each on a thread of its own. All see the same at any moment; but as
// on file systems that let a host make names first and tell of them later, a host's sync of a
// directory is one of the names that this host has changed. Test support.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "zerocache/disk/file_system.h"

namespace taco::testing {

class PowerLossDisk : public zerocache::FileSystem {
 public:
  PowerLossDisk();
  ~PowerLossDisk() override;

  // The disk as a host sees it; it lasts as long as the disk. The disk itself is as host 0, for one
  // thread alone.
  zerocache::FileSystem& host(int number);

  // Before anything changes, a sync included: the moment at which power may go. One at a time.
  std::function<void()> before_change;
  // Number of a sync, of a file or a directory, by one host, that does nothing: a program that
  // forgot it. -1: none. Counted from 0.
  int forgotten_sync = -1, forgetful_host = 0;
  int syncs(int host = 0) const;

  // The disk as it is found after a loss of power at this moment, by chance.
  std::unique_ptr<PowerLossDisk> after_power_loss(std::uint64_t seed) const;
  // Everything lasts: where a test begins.
  void sync_all();

  Result<std::unique_ptr<zerocache::File>> open(const std::string& path, zerocache::OpenMode mode,
                                                zerocache::Caching caching) override;
  Status make_directory(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<std::unique_ptr<zerocache::DirectoryLock>> lock(const std::string& directory) override;

 private:
  friend class MemoryFile;
  class Host;
  using Bytes = std::vector<std::byte>;
  struct Change {  // of a file: its length, or bytes in it
    std::uint64_t offset;
    Bytes bytes;
    bool is_length = false;
  };
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  using NameChange = std::map<std::string, std::shared_ptr<Node>>;  // null: the name goes
  struct PendingName {
    int host;
    NameChange change;
  };
  struct Node {
    bool is_directory = false;
    Bytes content, lasting;
    std::vector<Change> pending;
    Names names, lasting_names;
    std::vector<PendingName> pending_names;  // each all or nothing, as a rename is
  };
  struct Chances {
    double of_name, of_sector;
  };
  class Random;

  static void apply(const Change& change, Bytes* content);
  static void apply(const NameChange& change, Names* names);
  static void sync_all(Node& node);
  static std::shared_ptr<Node> survivor(const Node& node, const Chances& chances, Random& random);
  std::shared_ptr<Node> find(const std::string& path) const;
  Result<std::shared_ptr<Node>> directory_of(const std::string& path) const;
  void changing() const {
    if (before_change) before_change();
  }
  template <typename Call>
  auto in_turn(int host, const Call& call) {
    std::lock_guard lock(mutex_);
    acting_ = host;
    return call();
  }
  bool sync_happens();
  void change_names(Node& directory, const NameChange& change);

  std::shared_ptr<Node> root_;
  std::mutex mutex_;  // of hosts, for all below and above
  std::vector<std::unique_ptr<Host>> hosts_;
  int acting_ = 0;            // whose turn it is
  std::map<int, int> syncs_;  // by host
};

}  // namespace taco::testing
