"""Iterations on Spark over real graphs: rankings and components, with executors killed on the way."""
