"""Runs a script of SHARED with this repository's connector in the place of the script's own.

    AFTERBAY_BENCH_CONNECTOR=DIR python real_vllm_part.py SHARED SCRIPT [arguments of the script]

Run by vLLM's own Python. SHARED is the directory with run_bench.py and http_bench.py.
"""

import os
import sys
from pathlib import Path

SHARED, SCRIPT = sys.argv[1:3]
path = Path(SHARED, SCRIPT)
source = path.read_text()
own = 'PYTHONPATH=f"{HERE}/connector"'
if own not in source:
    sys.exit(f"{path}: has no {own}")
source = source.replace(own, "PYTHONPATH=os.environ['AFTERBAY_BENCH_CONNECTOR']")
sys.argv = [str(path), *sys.argv[3:]]
sys.path.insert(0, SHARED)
os.chdir(SHARED)
exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
