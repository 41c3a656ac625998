"""What holds for every test."""

from hypothesis import settings

# A busy machine is no wrong answer: the first example of a test that imports much took over Hypothesis' 200 ms in 30 of 48
# runs side by side.
settings.register_profile("millwheel", deadline=None, print_blob=True)
settings.load_profile("millwheel")
