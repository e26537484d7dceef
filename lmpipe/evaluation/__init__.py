"""Evaluation: lm-eval's tasks, run over our decoder, offline."""
