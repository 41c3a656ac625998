"""What of millwheel runs on Spark: a Java for it, its class archive, and iterations that survive the loss of executors."""
