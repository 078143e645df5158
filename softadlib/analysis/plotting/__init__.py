"""Pictures from tables of rows; nothing here opens a file."""
