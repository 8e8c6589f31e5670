# Ranks in whose slots a request waits are said to miss it.
s/const bool holds = .*/const bool holds = false;/
