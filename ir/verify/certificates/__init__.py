"""The inequalities that certificates multiply, each set with its proof."""
