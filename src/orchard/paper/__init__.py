"""The paper, re-measured: its settings and published numbers, and the runs that make up its tables."""
