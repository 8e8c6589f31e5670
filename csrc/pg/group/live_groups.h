// Every group of this process that has not been closed, for the dump of all of them. Any thread.
#pragma once

namespace taco::pg {

class Group;

namespace live_groups {
void add(Group& group);
void remove(Group& group);  // waits for a dump under way: afterwards the group may be destroyed
}  // namespace live_groups

}  // namespace taco::pg
