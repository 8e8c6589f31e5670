# Damaged packets are believed.
s/wire::parse(bytes, packet, !early/wire::parse(bytes, packet, false/
