"""Measured leakage: a run is repeated, and attacked by what its server, its clients and its models tell.

May import: runs, engines, core, data, tasks.
"""
