"""count_tests.py <build folder>: prints and stores the number of test cases that ctest has just run.

A ctest entry is either a program of GoogleTest, whose report in test-results/ lists its cases, or one
check. An entry that failed without a report (it crashed, or ran out of time) counts as one failure.
"""

import glob
import os
import sys
import xml.etree.ElementTree as xml


def count(build):
    passed = failed = skipped = 0
    reported = {}
    for path in glob.glob(os.path.join(build, "test-results", "*.xml")):
        if path.endswith("ctest.xml"):
            continue
        name = os.path.basename(path)[: -len(".xml")]
        cases = [0, 0, 0]
        for case in xml.parse(path).iter("testcase"):
            if case.get("status") == "notrun":
                continue
            if case.find("failure") is not None:
                cases[1] += 1
            elif case.get("result") == "skipped" or case.find("skipped") is not None:
                cases[2] += 1
            else:
                cases[0] += 1
        reported[name] = cases
    for entry in xml.parse(os.path.join(build, "test-results", "ctest.xml")).iter("testcase"):
        cases = reported.get(entry.get("name"), [0, 0, 0])
        passed, failed, skipped = passed + cases[0], failed + cases[1], skipped + cases[2]
        status = entry.get("status")
        if status == "fail":
            failed += cases[1] == 0
        elif sum(cases) == 0:
            passed += status == "run"
            skipped += status != "run"
    return passed, failed, skipped


build = sys.argv[1]
line = "tests: %d passed, %d failed, %d skipped" % count(build)
with open(os.path.join(build, "test-results", "summary.txt"), "w") as file:
    file.write(line + "\n")
print(line)
