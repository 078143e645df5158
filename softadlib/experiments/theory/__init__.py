"""The paper's Propositions 3, 4 and 6 as runnable checks."""
