"""Two training scripts, in plain torch and unaware of numscope: `numscope demo` copies, captures and compares them."""
