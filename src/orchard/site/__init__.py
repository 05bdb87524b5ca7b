"""A site's side of the door: its settings, its durable record, its turns, and what it looks at itself."""
