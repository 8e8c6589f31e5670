// How many file descriptors this process may have open. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace taco {

// Raises the soft limit as far as the hard one and good sense allow. Programs are given few as a
// rule, for the sake of old ones; a rank needs some for each peer on its host.
void raise_descriptor_limit();
// Whether this process may open none at this moment.
bool is_out_of_descriptors();
// The soft limit; 0: it is not known.
std::uint32_t descriptor_limit();
// "the limit is 1024 (ulimit -n), allow this process more", for errors that say that there is none
// left.
std::string descriptor_limit_text();
// Whether an errno says that a process may have no more descriptors, open or on their way through
// sockets.
bool says_no_descriptor(int error);
// Whether it says that there is no descriptor, or no memory for a socket, at this moment: nothing
// is wrong with what was asked for.
bool is_shortage(int error);
// The text of an errno: strerror's, and where it says that there is no descriptor left, the limit.
std::string system_error_text(int error);

}  // namespace taco
