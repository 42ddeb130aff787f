"""The guard in a torch job: a cheap look at each result, and a record of what led to the first non-finite one."""
