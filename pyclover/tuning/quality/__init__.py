"""How good a model file is: perplexity, divergence from a reference, accepted drafts."""
