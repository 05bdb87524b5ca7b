"""Clients on the nodes of a Ray cluster. Ray (the extra [ray]) is imported only where it is used."""
