"""Parse, elaborate and analyse a design with slang; diagnostics on stderr, exit code 1 where there are any.

Usage: slang_check.py TOP FILE...  (a process of its own: slang writes its diagnostics to stderr directly)
"""

import sys

import pyslang.driver


def main() -> int:
    """Exit code 0 only where slang had nothing to say."""
    top, files = sys.argv[1], sys.argv[2:]
    driver = pyslang.driver.Driver()
    driver.addStandardArgs()
    # A default in every unique case is the style here: it says what a value out of range does.
    # A cast that one configuration needs is useless in another.
    warnings = ["-Wextra", "-Werror", "-Wno-case-redundant-default", "-Wno-useless-cast"]
    command = " ".join(["slang", "--top", top, *warnings, *files])
    if not (driver.parseCommandLine(command) and driver.processOptions() and driver.parseAllSources()):
        return 1
    compilation = driver.createCompilation()
    driver.reportCompilation(compilation, True)
    driver.runAnalysis(compilation)
    return 0 if driver.reportDiagnostics(True) else 1


if __name__ == "__main__":
    sys.exit(main())
