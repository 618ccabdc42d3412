"""Why a schedule takes as long as it does, and how much more memory or faster links would gain."""
