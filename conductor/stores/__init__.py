"""Session stores: their interface, their choice, and the one in memory."""
