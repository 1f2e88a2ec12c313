"""What a run tells: log lines, progress, metrics, timelines, tables and curves. Knows numbers and names only."""
