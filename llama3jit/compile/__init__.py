"""Builds ops into native objects, keeps them, and loads them."""
