"""What happens to the fitted classifier as theta passes ln 2."""
