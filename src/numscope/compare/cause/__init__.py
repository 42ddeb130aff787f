"""From the use to the cause: where a value that differs was set, by the recorded source, attributes and stacks."""
