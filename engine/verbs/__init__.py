"""One verb of the command line per file: its arguments, and what it runs. Importing one loads nothing heavy."""
