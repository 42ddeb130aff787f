"""Other tools' dumps, in and out: one file per format."""
