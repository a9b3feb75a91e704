"""Events of the Chrome trace format out of a file: unpacked, decoded on as many cores as there are, salvaged, numbered."""
