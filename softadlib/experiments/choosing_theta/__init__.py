"""Ways to choose theta, compared."""
