"""The playground: a local page on which decodings race over a text or a puzzle. Needs the extra ``play``."""
