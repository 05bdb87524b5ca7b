"""What a round is made of: the contract, vectors, models, training and its measures.

May import: privacy, data, tasks, and the files at the top.
"""
