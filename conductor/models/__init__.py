"""Model providers: one interface, one file a provider."""
