"""What a rank's stages, its links and its host take and hold, run as the executor runs them."""
