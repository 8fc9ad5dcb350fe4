"""What runs in a process of its own, which a crashing backend may take down.

`python -m recipes.runner.methods` runs methods of a program, `python -m recipes.runner.backends` tells which backends
this host's runtime has. Both start fast: they import ExecuTorch's runtime, and nothing of ours.

May be imported by nobody: it is started. May import no other room.
"""

__all__: list[str] = []
