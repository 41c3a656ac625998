"""Elements that fail: keys in quarantine, suspects that run alone, rows that the database refused."""
