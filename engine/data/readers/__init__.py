"""One type of data layer per file; each registers itself."""
