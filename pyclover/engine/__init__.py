"""Model, context, generation loop, sampling, statistics. Everything here is private; see `pyclover.Clover`."""
