"""The output of the commands, one file per answer."""
