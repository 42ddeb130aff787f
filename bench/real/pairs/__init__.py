"""A script for each pair of releases: a small job that meets the bug, and the statement that its fix changed."""
