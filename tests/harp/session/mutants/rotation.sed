# Keys change before the peer is known to have the last one.
s/if (!confirmed_) return .*;//
