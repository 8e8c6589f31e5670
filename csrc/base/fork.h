// The registry of descriptors that a forked child must not inherit. A DataLoader worker that kept
// an engine's socket open would keep a dead rank's address alive and hide its death, so the child
// closes every descriptor registered here before it runs anything else, and finds whatever owned
// them disabled.
//
// Any thread. The registry is a lock-free table, since the child's handler may take no lock.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace taco {

// Installs the handler on first use. Every descriptor of an engine is registered when it is made.
void close_on_fork(int fd);
// Closes a descriptor and removes it from the registry, in an order that makes a fork in between
// harmless.
void close_now(int fd);

// While one lives no child is forked, whichever thread would do it. For calls that take the locks
// of a library: a child that is forked meanwhile has them locked, and no thread that unlocks them.
// A thread has one at a time, briefly, and forks nothing with it.
class NoForkMeanwhile {
 public:
  NoForkMeanwhile();
  ~NoForkMeanwhile();
  NoForkMeanwhile(const NoForkMeanwhile&) = delete;
  NoForkMeanwhile& operator=(const NoForkMeanwhile&) = delete;
};

// Grows by one in every forked child of a process that has asked for it: an object that remembers
// the value it was born with knows whether it has become a copy in a child.
std::uint32_t fork_generation();

// Ends an object that remembers it as its `generation`, but no copy in a forked child: threads that
// are not there had it half changed, or wait in it for good. Such a copy is left as it is. For the
// destroying operator delete of a class.
template <class Object>
void end_unless_copied(Object* object) {
  static_assert(alignof(Object) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  if (object->generation != fork_generation()) return;
  std::destroy_at(object);
  ::operator delete(object);
}

}  // namespace taco
