"""One step of one rank as numpy columns, with both runs' names and layouts brought into common terms."""
