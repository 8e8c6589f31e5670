# A packet that came long ago acts again.
s/if (!uncounted && path->has_received(number))/if (!uncounted \&\& number + 64 > path->largest_received() \&\& path->has_received(number))/
s/verdict == SerialFilter::Verdict::kDuplicate/verdict == SerialFilter::Verdict::kDuplicate \&\& !path.has_received(packet.number)/
s/keep = on_records(reader.serial, reader.records) && keep;/if (path.has_received(packet.number)) deliver_records(reader.records); else keep = on_records(reader.serial, reader.records) \&\& keep;/
