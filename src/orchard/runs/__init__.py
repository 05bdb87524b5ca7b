"""A run from start to end: the loop over rounds, the run folder, checkpoints, results, and grids of runs.

May import: engines, methods, core, privacy, data, tasks, and the files at the top.
"""

JOIN_ROUNDS = 10
"""For how many rounds a newcomer to a finished run trains; here, where the command line finds it without PyTorch."""
