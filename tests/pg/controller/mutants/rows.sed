# The rows of a request are forgotten once it has a slot.
s/next.rows = slot.rows;//
