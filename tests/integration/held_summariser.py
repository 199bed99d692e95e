"""HeldSummariser: a command summariser that a test can pause at a session or while it drafts the profile.

Owns a directory that an unprivileged user can use, with two pipes for each task. The command announces itself on the
first and waits on the second until it is released.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

_SCRIPT = r"""
question=$(cat)
case "$question" in
'{"task": "session"'*) name=$(printf %s "$question" | sed 's/^{"task": "session", "session": "\([^"]*\)".*/\1/') ;;
*) name=profile ;;
esac
if [ -p "$1/$name.at" ]; then
    echo "$name" > "$1/$name.at"
    cat "$1/$name.go" > /dev/null
fi
if [ "$name" != profile ]; then
    echo '{"facts": [{"section": "preferences", "text": "Prefers short answers", "messages": [1]}]}'
else
    from=$(printf %s "$question" | sed 's/^{"task": "profile", "sessions": \[{"session": "\([^"]*\)".*/\1/')
    printf '{"summary": "Wants it short", "bullets": [{"section": "preferences", "text": "Prefers short answers",'
    printf ' "sources": [{"session": "%s", "message": 1}]}]}\n' "$from"
fi
"""


class HeldSummariser:
    def __init__(self, *tasks: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="sandboxd-held-"))
        self._directory.chmod(0o755)
        self._tasks = tasks
        for task in tasks:
            for end in ("at", "go"):
                path = self._directory / f"{task}.{end}"
                os.mkfifo(path)
                path.chmod(0o666)

    def settings(self) -> dict[str, object]:
        """Return the settings of a daemon that uses it."""
        command = json.dumps(["sh", "-c", _SCRIPT, "held", str(self._directory)])
        return {"consolidation__summariser": "command", "consolidation__command": command}

    def wait_until_paused(self, task: str) -> None:
        assert (self._directory / f"{task}.at").read_text() == f"{task}\n"

    def release(self, task: str) -> None:
        (self._directory / f"{task}.go").write_text("")

    def close(self) -> None:
        """Release every waiting command, those of killed daemons too."""
        for task in self._tasks:
            try:
                os.close(os.open(self._directory / f"{task}.go", os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: no command is waiting
                    raise
        shutil.rmtree(self._directory)
