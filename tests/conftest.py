"""What holds for every test."""

import signal

from hypothesis import settings

from tests import effort

# A busy machine is no wrong answer: the first example of a test that imports much took over Hypothesis' 200 ms in 30 of 48
# runs side by side.
settings.register_profile("gate", deadline=None, print_blob=True, derandomize=True, database=None)
settings.register_profile("search", deadline=None, print_blob=True, max_examples=effort.examples(100))
settings.load_profile(effort.PROFILE)

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start inherits that: the tests that
# end a child by it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
