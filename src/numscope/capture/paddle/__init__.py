"""Paddle's calls: functions and layers replaced while capture is on, gradients by tensors' own hooks."""
