"""Reproduce the paper: its published numbers, its protocol, and the runs behind its tables.

May import: report, runs, methods, core, data, and the files at the top.
"""
