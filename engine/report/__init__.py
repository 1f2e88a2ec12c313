"""What a run tells: log lines, progress, metrics, timelines, tables, curves and drawings. Knows numbers and names; only
draw_net, tensorboard and layer_times know a net."""
