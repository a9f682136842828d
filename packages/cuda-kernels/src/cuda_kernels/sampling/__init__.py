"""Sampling of the next token: penalties, filters, Gumbel argmax from a counter-based generator."""
