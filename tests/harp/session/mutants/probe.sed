# Nobody asks a silent peer for a sign of life.
s/return waiting && .*;/return false;/
s/tail_[.]request();//
