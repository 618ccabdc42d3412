"""Where a model is cut into stages: together with where they live and who computes what, when."""
