"""Fitting a model to a machine: what is there, what a model needs, and the settings that fit."""
