"""PyTorch's calls, seen through its own interposition points, and fed to the recorder."""
