"""The homes of a stage's weights and gradients."""
