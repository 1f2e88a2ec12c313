"""Readers of data layers: one type of layer, or a family of similar ones, per file; each class registers itself."""
