"""Models on a hub: what there is, downloads that are whole and right or not there at all, remote files."""
