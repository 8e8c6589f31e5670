# Senders do not keep within what the receiver has granted.
s/[a-z_.]*peer_limit[_()]*/(kNever \/ 2)/g
