"""The command line `clover-run`: thin commands; data on standard output, talk on standard error."""
