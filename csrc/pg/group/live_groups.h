// Every group of this process that has not been closed, for the dump of all of them. Any thread.
#pragma once

#include <functional>

namespace taco::pg {

class Group;

namespace live_groups {
void add(Group& group);
void remove(Group& group);  // waits for a dump under way: afterwards the group may be destroyed
// Under the lock that add() and remove() take.
void for_each(const std::function<void(Group&)>& function);
}  // namespace live_groups

}  // namespace taco::pg
