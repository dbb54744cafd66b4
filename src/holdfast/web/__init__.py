"""The page and the metrics: what a pipeline does and did, read from its repository.

Rules:
- `reading` turns a repository into frozen values; the command line uses it too. Nothing is written.
- `drawing` turns such values into HTML and SVG, `metrics` into OpenMetrics text. Both are pure.
- `server` needs the extra `page`. It serves nothing outside of its roots, and only answers requests for its own host.
"""

PORT = 8321  # of the page, unless another one is given
