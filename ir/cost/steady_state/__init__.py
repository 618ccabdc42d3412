"""Iterations back to back, with messages that contend for links."""
