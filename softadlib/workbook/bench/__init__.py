"""Timing of the published training loop against this library."""
