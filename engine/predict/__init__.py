"""Predicts the time of a step on ranks that are not there: network model, simulation, calibration."""
