"""The answers of the simulated model to coding agents. The latest step of a task is found by the result of its call."""

from __future__ import annotations

from answers import call, rule

# The shell computes 42, so the text is in a prompt only after the command ran.
COUNT = "$((6*7))-made"
PATCH = "*** Begin Patch\n*** Add File: patched.txt\n+größer 👩‍👩‍👧\n*** End Patch"

CODEX = (
    rule("Done: 42-made.", "Make the file", "42-made"),
    rule("I make it.\n" + call("exec_command", {"cmd": f"echo tide > made.txt; echo {COUNT}"}), "Make the file"),
    rule("Closed.", "Close the agent", "probe-agent"),
    rule(call("multi_agent_v1__close_agent", {"target": "probe-agent"}), "Close the agent"),
    rule("Patched.", "Patch the file", "Success. Updated"),
    rule("I patch it.\n" + call("apply_patch", {"input": PATCH}), "Patch the file"),
    rule("Searched.", "Search for tools", "deferred-probe"),
    rule(call("tool_search", {"query": "deferred-probe"}), "Search for tools"),
    rule("Ran: 42-made.", "Run the code", "42-made"),
    rule(
        call("functions__exec", {"input": f"text((await tools.exec_command({{cmd: 'echo {COUNT}'}})).output)"}),
        "Run the code",
    ),
)

CLAUDE_CODE = (
    rule("Done: 42-made.", "Make the file", "42-made"),
    rule(
        call("Bash", {"command": f"cat made.txt; echo {COUNT}", "description": "Show it"}),
        "Make the file",
        "has been updated",
    ),
    rule(
        call("Edit", {"file_path": "made.txt", "old_string": "tide", "new_string": "ebb 👩‍👩‍👧"}),
        "Make the file",
        "created successfully",
    ),
    rule("I make it.\n" + call("Write", {"file_path": "made.txt", "content": "tide\n"}), "Make the file"),
)
