"""What a repository contains, as frozen values for the page, the metrics and the command line. Nothing is written."""
