# What is lost, or comes in company, is never granted again.
s/  largest_ = largest;/  ++largest_;/
