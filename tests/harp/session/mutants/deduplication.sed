# A duplicate is counted, and taken all the same.
/duplicates;$/,/return/{
  /return/d
}
