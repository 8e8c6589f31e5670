# Whoever can calculate a checksum can make up a segment.
s/if (by.key == nullptr || .*) return 0;/return 0;/
