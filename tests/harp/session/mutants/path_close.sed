# Nobody tells the peer what was lost with a path.
s/if (path[.]closed_up_to() == path[.]last_number() || /if (true || /
