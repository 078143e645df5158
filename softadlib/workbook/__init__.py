"""The softad command: run notebooks, train, report, export."""
