"""One stage a rank."""
