"""What people look at: tables and boards."""
