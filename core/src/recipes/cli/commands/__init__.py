"""The commands, a module each. A new one is a module here and a line in `recipes.cli.app`.

What a command needs beyond `recipes.cli.shared` is imported inside it: listing stays fast.
"""
