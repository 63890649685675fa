"""What several tests share: stand-in denoisers, tiny checkpoints, references written from the definitions."""
