"""What of millwheel runs on Spark: a Java for it and its class archive, clusters of workers, and iterations."""
