"""Data: the catalogue of datasets, the file readers, and the division of samples among clients.

May import: the files at the top.
"""
