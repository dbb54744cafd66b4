"""Actions on the page: what `holdfast serve --allow-control` adds.

Rules:
- An action does what a command does, through the same functions: the requests of `holdfast.control`, the plans of
  `prune` and `rewind`, and `verify`. Nothing is implemented twice.
- Every action has two steps. The first shows the plan and changes nothing. The second carries the plan out, and needs a
  ticket that the first one has issued. A ticket is valid once, and for ten minutes.
- Both steps are POST requests with the token in their form. There is no cookie: a browser adds nothing by itself that
  another website could make use of, and other servers on this machine get no cookie of this one.
- Without `--allow-control`, none of these addresses exists.
"""
