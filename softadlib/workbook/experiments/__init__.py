"""What the notebooks compute and draw, one module or package a notebook."""
