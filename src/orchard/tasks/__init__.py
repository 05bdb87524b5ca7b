"""What is predicted: a task has a loss, checks of targets, measures, and a way to write predictions.

May import: the files at the top.
"""
