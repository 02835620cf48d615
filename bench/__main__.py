"""``python -m bench``: ``command``, also where Ctrl-C comes while it loads, or who reads its output has gone."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    try:
        from bench.command import main

        try:
            code = main()
        finally:
            print(end="", flush=True)  # not first when Python ends, where nobody could catch what it raises
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    sys.exit(code)
