"""A run from start to end: the loop over rounds, the run folder, checkpoints, results, and grids of runs.

May import: engines, methods, core, privacy, data, tasks, and the files at the top.
"""
