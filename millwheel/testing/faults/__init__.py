"""What goes wrong in a simulation, and when."""
