"""What the commands print, one file per answer."""
