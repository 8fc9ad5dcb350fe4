"""The commands, a module each. A new one is a module here and a line in `recipes.cli.app`.

A command imports what it needs beyond `recipes.cli.shared` inside its function, so that listing stays fast.
"""
