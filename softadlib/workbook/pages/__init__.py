"""Pages: notebooks that papermill executes, the report and the book that are made of them."""
