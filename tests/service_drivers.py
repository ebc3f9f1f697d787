"""What the tests of the service run in processes of their own, because they are killed.

``service_drivers.py FOLDER STEP SEED`` opens the service of a folder and asks one query. The process kills itself at
the step; without a step it prints the answer as JSON.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service_support import make_query, open_service

from scoreshield.service import answers
from scoreshield.service.answers import AnswerBook, Payer


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        function(*args)
        die()

    return run


#: The steps of an answer, in order: where each kills the process.
STEPS: dict[str, Callable[[], None]] = {
    "before the charge": lambda: setattr(AnswerBook, "_charge", die),
    "inside the transaction": lambda: setattr(answers, "_write_spending", die_after(answers._write_spending)),
    "after the charge": lambda: setattr(AnswerBook, "_draw", die),
    "after the draw": lambda: setattr(AnswerBook, "_store", die),
    "after the store": lambda: setattr(AnswerBook, "_store", die_after(AnswerBook._store)),
}

if __name__ == "__main__":
    folder, step, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    service = open_service(folder)
    if step:
        STEPS[step]()
    served = service.collections["docs"]
    answer = served.search(Payer("app"), "search", [served.read_query(make_query(seed))], 50)[0]
    print(service.sign({"hits": [hit.to_dict() for hit in answer.hits], "entry": answer.entry}).decode())
