"""Sockets that PySpark leaves open: only these warnings are not errors."""

LEAVES_SOCKETS = ("4.1",)  # `collect` reads rows from a socket, which PySpark closes only since 4.2 (test_versions.py)
SOCKET = "unclosed <socket.socket .*raddr="  # one that is connected
