# An engine is excused for the time that its own work takes.
s/excuses_[.]grant(now, gap_, worked)/gap_/
