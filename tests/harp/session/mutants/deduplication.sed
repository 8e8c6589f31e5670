# What has come before is counted, and taken all the same.
/duplicates;$/,/return/{
  /return/d
}
