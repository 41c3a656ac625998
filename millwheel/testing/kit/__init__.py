"""What users test a pipeline with: step it by hand, script its sources, read its results, break its code on purpose."""
