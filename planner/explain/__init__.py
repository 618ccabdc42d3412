"""Why a schedule takes as long as it does, and certificates of its lower bound."""
