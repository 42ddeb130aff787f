"""Files of a run that describe the job: its modules, and the source that its calls stand in."""
