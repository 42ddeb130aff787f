"""Where a comparison's work runs: this process, or a ray cluster."""
