"""A script per case; those named `control_…` are benign."""
