# Nobody tells the peer what was lost with a path.
s/if (path[.]settled() == path[.]last_number() || /if (true || /
