"""Why a schedule takes as long as it does, and what more memory or faster links buy."""
