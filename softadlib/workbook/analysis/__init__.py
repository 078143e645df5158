"""From rows to numbers, tables and pictures."""
