"""Generators of the synthetic training text, by kind. `training.data.mix` joins them."""
