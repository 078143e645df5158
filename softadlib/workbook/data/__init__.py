"""Data sets, and how each trial splits them into training, validation and test parts.

A new set is an entry of `synthetic.SYNTHETIC`, `images.IMAGES` or `tables.TABLES`.
"""
