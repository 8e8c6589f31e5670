# Hellos are answered at full length, however short they are.
s/std::min<std::size_t>(answer_[.]bytes, max_datagram_)/max_datagram_/
