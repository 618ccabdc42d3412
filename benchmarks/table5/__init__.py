"""Table 5 of the Zero Bubble paper: published and own bubble rates side by side."""
