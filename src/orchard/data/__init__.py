"""Data: the catalogue of datasets, the file readers, and the division of samples among clients.

May import: tasks, and the files at the top.
"""
