"""Looking at runs: one page to read in a browser, the same page live, figures for a paper, TensorBoard's events."""
