# Damaged packets are believed.
s/wire::parse(bytes, packet)/wire::parse(bytes, packet, false)/
