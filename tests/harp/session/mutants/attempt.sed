# A number that the Nic has not taken is sealed again under the same nonce.
s/^  ++attempt_;$//
