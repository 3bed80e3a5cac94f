"""Measuring: benchmarks, tuning, profiles, calibration.

Not called `tune`: `pyclover.tune` is a function, and a package of that name would take its place once imported.
"""
