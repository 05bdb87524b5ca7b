"""Export a client's model from a run, describe it in a model card, and predict with it.

May import: runs, engines, core, privacy, data, tasks, and the files at the top.
"""
