"""What a user touches: computations, contexts, state cells, pipelines."""
