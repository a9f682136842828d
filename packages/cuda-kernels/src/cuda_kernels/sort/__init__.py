"""Stable sort along any dimension."""
