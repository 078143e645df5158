"""Data sets, and how each trial splits them into training, validation and test parts."""
