"""Executors: who carries out the tasks of a study, on this machine or on a cluster."""
