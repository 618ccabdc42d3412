"""The arguments of certificates, each with its proof."""
