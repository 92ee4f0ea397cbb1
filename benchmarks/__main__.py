"""Run all benchmarks, or the named ones.

    python -m benchmarks [NAME ...]

A suite is a module of this package with a docstring and a function `run()`.
"""

import argparse
import pkgutil
from importlib import import_module

import benchmarks


def main() -> None:
    suites = sorted(
        module.name
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if not module.name.startswith("_")
    )
    parser = argparse.ArgumentParser(prog="benchmarks", description="Run the benchmarks.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"suites to run (default: all): {', '.join(suites)}",
    )
    names = parser.parse_args().names
    if unknown := sorted(set(names) - set(suites)):
        parser.error(f"unknown suite {', '.join(unknown)}; choose from {', '.join(suites)}")
    for name in names or suites:
        suite = import_module(f"benchmarks.{name}")
        print(f"\n{name}: {(suite.__doc__ or '').strip().splitlines()[0]}\n")
        suite.run()


if __name__ == "__main__":
    main()
