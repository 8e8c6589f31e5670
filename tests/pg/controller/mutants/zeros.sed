# Requests are fused whether or not the same ranks give zeros for them.
s/a.zeros == b.zeros/true/
