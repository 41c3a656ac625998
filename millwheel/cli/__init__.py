"""The command line: `millwheel run module:pipeline` and the questions about committed state.

Lives here: parsing and printing.  A module is a command, or a family of them; `root` has their list.  Modules import at their
top only what is quick, so that `millwheel --help` and completion answer at once.  A function that needs a pipeline or a store
imports it itself.
"""
