"""The accuracy of a device's operators: each is called on inputs of many sizes and held against float64."""
