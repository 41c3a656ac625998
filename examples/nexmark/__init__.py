"""Nexmark: the auction site by which stream systems are measured, as pipelines of the library, with SQL as the judge."""
