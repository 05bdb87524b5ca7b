"""Tables: reading them, finding what their columns are, and turning their rows into numbers."""
