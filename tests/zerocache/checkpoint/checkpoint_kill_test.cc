// Processes that save are killed at random moments, and what they leave is loaded: nothing is lost
// beyond the save that had not returned. Half of them die before a call chosen at random, the
// others by the clock. TACO_TEST_SAVE_KILLS says how many (40); the directory is the same for all,
// so that each goes on with what the one before left.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/faulty_files.h"
#include "support/saved_pages.h"
#include "support/sim_random.h"
#include "support/temporary_directory.h"

namespace taco::zerocache {
namespace {

using testing::FaultyFiles;
using testing::FileCall;
using testing::load_any;
using testing::Loaded;
using testing::save_number;

// Saves one after the other, saying each number when it has returned, until it is killed.
[[noreturn]] void save_for_ever(const std::string& directory, std::uint64_t first,
                                const Layout& layout, int said, std::uint64_t calls) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  FaultyFiles files([&](const FileCall&) {
    if (calls > 0 && --calls == 0) kill(getpid(), SIGKILL);
    return 0;
  });
  for (std::uint64_t save = first;; ++save) {
    const auto saved = save_number(files, directory, save, layout);
    if (!saved.ok()) {
      std::fprintf(stderr, "save %llu: %s\n", static_cast<unsigned long long>(save),
                   saved.status().message().c_str());
      _exit(1);
    }
    if (write(said, &save, sizeof save) != sizeof save) _exit(1);
  }
}

struct Death {
  std::uint64_t last_said = 0;  // 0: none returned
  bool by_kill = false;
};

Death kill_a_saver(const std::string& directory, std::uint64_t first, const Layout& layout,
                   harp::SimRandom& random, bool by_clock) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const std::uint64_t calls = by_clock ? 0 : 1 + random.below(120);
  const auto delay = static_cast<useconds_t>(random.below(60'000));
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    save_for_ever(directory, first, layout, ends[1], calls);
  }
  close(ends[1]);
  if (by_clock) {
    usleep(delay);
    kill(child, SIGKILL);
  }
  Death death;
  std::uint64_t save = 0;
  while (read(ends[0], &save, sizeof save) == sizeof save) death.last_said = save;
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  death.by_kill = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  close(ends[0]);
  return death;
}

TEST(Kill, AtRandomMomentsOfSaveLosesNothingThatWasSaved) {
  const char* const asked = std::getenv("TACO_TEST_SAVE_KILLS");
  const int kills = asked == nullptr ? 40 : std::atoi(asked);
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "checkpoints";
  const Layout layout = testing::layout_of_saves();
  harp::SimRandom random(20);
  std::uint64_t last = 0;  // that is known to be saved
  int cut_off = 0, lasting_unsaid = 0;
  for (int i = 0; i < kills; ++i) {
    SCOPED_TRACE("kill " + std::to_string(i));
    const Death death = kill_a_saver(path, last + 1, layout, random, i % 2 == 1);
    ASSERT_TRUE(death.by_kill);
    const std::uint64_t said = std::max(last, death.last_said);
    const Loaded found = load_any(FileSystem::real(), path, layout);
    ASSERT_EQ(found.problem, "");
    ASSERT_EQ(found.exists, found.save > 0);
    ASSERT_GE(found.save, said) << "a save that had returned is lost";
    ASSERT_LE(found.save, said + 1);
    lasting_unsaid += found.save > said;
    cut_off += FileSystem::real().list(path).ok() && FileSystem::real().list(path).value().size() >
                                                         3;  // more than a finished save leaves
    last = found.save;
  }
  std::printf("%d kills: %llu saves, %d cut off midway, %d done but not yet returned\n", kills,
              static_cast<unsigned long long>(last), cut_off, lasting_unsaid);
  EXPECT_GT(last, 0u);
  EXPECT_GT(cut_off, kills / 8) << "hardly any kill hit a save";
}

}  // namespace
}  // namespace taco::zerocache
