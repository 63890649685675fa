"""Studies: a question, the measurements that answer it, and their table. Each is one command, ``unmask study NAME``."""
