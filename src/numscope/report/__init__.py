"""One file per output: terminal, csv, xlsx, html, json, parquet."""
