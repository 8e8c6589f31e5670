# Senders do not keep within what the receiver has granted.
s/credit_[.]left()/(kNever \/ 2)/
