"""Grouped-query attention over a slotted key-value cache: decode (split over the keys) and tiled prefill."""
