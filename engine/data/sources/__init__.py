"""Sources of data, one type per file; each class registers itself."""
