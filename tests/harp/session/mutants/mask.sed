# Whoever can calculate a checksum can make up a segment.
s/if (key == nullptr || .*) return 0;/return 0;/
