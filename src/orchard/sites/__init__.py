"""Silos on separate machines, over NVIDIA FLARE: the shared plan, a site's side, the coordinator's side.

May import: export, runs, engines, methods, core, privacy, data, tasks, and the files at the top.
"""
