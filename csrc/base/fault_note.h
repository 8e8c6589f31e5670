// A line on stderr where a touch of memory that comes and goes ends the process.
//
// A read by a pointer that outlived its bytes (device/device.h) ends the process by SIGSEGV, which
// is as it should be: there is no value to go on with. But "Segmentation fault" alone names
// nothing. With a note the handler says first what the address was; then whoever would have handled
// the signal does, or the process ends as without.
//
// The handler is installed with the first note, and stays. A program that sets another after that
// (Python's faulthandler, say) has its own called first, and may hide this one. Any thread.
#pragma once

#include <cstddef>

namespace taco {

class FaultNote {
 public:
  // Writes what lies `offset` bytes behind the range's start, in `size` characters at most, and
  // returns how many. Called inside a signal's handler, in a process that is about to end: it takes
  // no lock and allocates nothing, and may read what another thread is just changing. If that
  // faults too, the process ends without a line.
  using Describe = std::size_t (*)(const void* owner, std::size_t offset, char* text,
                                   std::size_t size);

  // `owner` and the range's addresses live as long as this does. Where 64 notes live already, this
  // one says nothing.
  FaultNote(const std::byte* begin, std::size_t bytes, const void* owner, Describe describe);
  ~FaultNote();
  FaultNote(const FaultNote&) = delete;
  FaultNote& operator=(const FaultNote&) = delete;

 private:
  int slot_ = -1;
};

}  // namespace taco
