"""Messages between ranks, and the positions of their sends, receives and waits in each order."""
