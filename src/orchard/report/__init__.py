"""Show runs: as a report page, as a live page, as figures for print, and in TensorBoard.

May import: audit, runs, core, data, tasks, and the files at the top.
"""
