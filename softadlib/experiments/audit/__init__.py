"""The paper's claims, tested on stored results."""
