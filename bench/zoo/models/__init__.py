"""Small realistic models and training loops that the cases share; none of them is wrong."""
