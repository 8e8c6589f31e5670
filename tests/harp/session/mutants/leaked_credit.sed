# Credit of packets that are lost, or that come several at a time, is never granted again.
s/  largest_ = largest;/  ++largest_;/
