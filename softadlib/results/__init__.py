"""The table of metrics: its columns, its files under outputs/, and how runs are selected. No tensors."""
