"""Studies: which runs a profile asks for, what of them is stored, and the rows they left."""
