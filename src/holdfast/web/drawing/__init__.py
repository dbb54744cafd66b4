"""HTML and SVG of the page, from frozen values. Pure: nothing is read here, and the time is an argument."""
