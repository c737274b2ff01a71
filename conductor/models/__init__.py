"""Model providers: one seam, one file a provider."""
