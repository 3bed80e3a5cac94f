"""Training of the small Clover model that ships with pyclover as `tiny`. Not part of the wheel; see README.md here."""
