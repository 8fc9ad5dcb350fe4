"""Scripts that run in a separate process, because a backend that crashes ends it.

`python -m recipes.runner.methods` runs methods of a program, `python -m recipes.runner.backends` prints which backends
this host's runtime has. Both start fast: they import ExecuTorch's runtime, and no other module of recipes.

May not be imported, because its modules are run as scripts. May import no other room.
"""

__all__: list[str] = []
