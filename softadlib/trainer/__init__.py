"""From a protocol to rows: train the runs of one dataset and method on this device."""
