"""Scaling: a sweep of tiny models, one law fitted to their losses, one prediction checked."""
