"""Clients as sites on separate machines: messages of plain values and bytes, and the checks on each side."""
