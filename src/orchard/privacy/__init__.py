"""Record-level differential privacy: its settings, accounts, noise, and the gradients that are private.

One gradient is clipped sample by sample and noised, in `PrivateRound`. All that is made of it afterwards, a client's
model, its relationships, what it asks for next, is post-processing and needs no more noise.

May import: data, tasks, and the files at the top.
"""
