"""Trained nets at work: scores over a test set, classification, features."""
