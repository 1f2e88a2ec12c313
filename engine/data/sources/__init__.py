"""One data source per file; each registers itself."""
