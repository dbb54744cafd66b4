"""`python -m holdfast`: runs the command where the `holdfast` script is not on the PATH."""

from holdfast.cli import main

main()
