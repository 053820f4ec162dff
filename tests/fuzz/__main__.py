"""Throws random messages at every service. Says how far it came, and exits with 1 if it found something.

What it finds is replayed with the seed that it prints, the same campaign and the same number of messages.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
import traceback

from tests.fuzz.campaigns import CAMPAIGNS, num_messages_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="python -m tests.fuzz")
    parser.add_argument("campaigns", nargs="*", help=f"of {', '.join(CAMPAIGNS)}; none: all")
    parser.add_argument(
        "--num-messages", type=int, default=100_000, help="of each campaign; a sixteenth in hostile ones"
    )
    parser.add_argument("--seed", type=int, default=None, help="of all randomness; none: a new one")
    arguments = parser.parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    failed = False
    for name in arguments.campaigns or CAMPAIGNS:
        began = time.monotonic()
        print(f"{name}: seed {seed}", flush=True)
        try:
            report = asyncio.run(CAMPAIGNS[name](num_messages_of(name, arguments.num_messages), seed))
        except Exception:  # noqa: BLE001 - the other campaigns have their turn
            traceback.print_exc()
            print(
                f"FAILED {name}: replay with --seed {seed} --num-messages {arguments.num_messages} {name}", flush=True
            )
            failed = True
        else:
            print(f"{report} in {time.monotonic() - began:.1f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
