"""Clients as sites on separate machines: messages of plain values and bytes, and what each side refuses."""
