"""What an interval has sent, and has to send again until it is acknowledged."""
