// A disk in memory that can lose power: of what was not made to last, a part is then there, chosen
// at random and in no order. Writes last, sector by sector, once their file was synced; names, by
// ones and twos, once their directory was. Test support.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zerocache/file_system.h"

namespace taco::testing {

class PowerLossDisk : public zerocache::FileSystem {
 public:
  PowerLossDisk();

  // Before anything changes, a sync included: the moment at which power may go.
  std::function<void()> before_change;
  // Number of a sync, of a file or a directory, that does nothing: a program that forgot it. -1:
  // none. Counted from 0.
  int forgotten_sync = -1;
  int syncs() const { return syncs_; }

  // What is found after a loss of power at this moment, by chance.
  std::unique_ptr<PowerLossDisk> after_power_loss(std::uint64_t seed) const;
  // Everything lasts: where a test begins.
  void settle();

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
  using Bytes = std::vector<std::byte>;
  struct Change {  // of a file: its length, or bytes in it
    std::uint64_t offset;
    Bytes bytes;
    bool is_length = false;
  };
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  using NameChange = std::map<std::string, std::shared_ptr<Node>>;  // null: the name goes
  struct Node {
    bool is_directory = false;
    Bytes content, lasting;
    std::vector<Change> pending;
    Names names, lasting_names;
    std::vector<NameChange> pending_names;  // each all or nothing, as a rename is
  };
  struct Chances {
    double of_name, of_sector;
  };
  class Random;

  static void apply(const Change& change, Bytes* content);
  static void apply(const NameChange& change, Names* names);
  static void settle(Node& node);
  static std::shared_ptr<Node> survivor(const Node& node, const Chances& chances, Random& random);
  std::shared_ptr<Node> find(const std::string& path) const;
  Result<std::shared_ptr<Node>> directory_of(const std::string& path) const;
  void changing() const {
    if (before_change) before_change();
  }
  bool sync_happens() { return syncs_++ != forgotten_sync; }
  void change_names(Node& directory, const NameChange& change);

  std::shared_ptr<Node> root_;
  int syncs_ = 0;
};

}  // namespace taco::testing
