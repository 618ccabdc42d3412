"""Messages between ranks, and where their sends, receives and waits stand in the ranks' orders."""
