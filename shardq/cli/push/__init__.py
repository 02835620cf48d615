"""push: one task from the command line (``command``), or many from lines: ``lines`` reads, ``bulk`` stores them."""
