"""Measured leakage: a run is repeated, and attacked by what its server, its clients and its models tell.

May import: runs, engines, core, privacy, data, tasks, and the files at the top.
"""
