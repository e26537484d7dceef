"""Report: one page that says what a run did to its data and what came out of it."""
