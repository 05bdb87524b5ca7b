"""Engines carry messages between the server and its clients, and manage the memory of models.

An engine knows nothing of methods. May import: core, privacy, data, tasks, and the files at the top.
"""
