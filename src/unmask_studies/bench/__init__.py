"""What decoding and learning cost, as ratios measured side by side in one run."""
