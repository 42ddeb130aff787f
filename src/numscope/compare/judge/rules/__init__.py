"""The rules of the judge, one file per kind of call or of evidence."""
