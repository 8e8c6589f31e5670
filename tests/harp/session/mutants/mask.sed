# Segments carry a checksum without the key, so that anybody can make one up.
s/if (by.key == nullptr || .*) return 0;/return 0;/
