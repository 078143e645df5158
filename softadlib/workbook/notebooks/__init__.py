"""Which notebooks a profile needs, and their execution by papermill."""
