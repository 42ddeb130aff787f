"""Rules that the ranks of one job keep among themselves: no other run is needed to see them broken."""
