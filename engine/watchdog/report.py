"""Writes what the hub prints when a rank makes no progress: first the rank to blame, then where all others are."""

from dataclasses import dataclass

from engine.errors import ranges_text

STATES = {"T": "is stopped by a signal (SIGSTOP)", "D": "waits for a disk or a network file system"}


@dataclass(frozen=True)
class Answer:
    """Where one rank is, as its sentinel has answered."""

    rank: int
    pid: int
    host: str
    idle: float  # seconds without progress
    state: str  # of the process; see process.state_of()
    waits: bool  # for other ranks
    text: str  # see Board.text()

    @classmethod
    def parse(cls, words: list[str]) -> "Answer":
        """Makes an answer of the words that follow `at`. Raises ValueError if they are not such words."""
        rank, pid, host, idle, state, waits, *text = words
        return cls(int(rank), int(pid), host, float(idle), state, waits == "1", " ".join(text))

    @property
    def name(self) -> str:
        return rank_name(self.rank, self.pid, self.host)


def rank_name(rank: int | str, pid: int | str, host: str) -> str:
    return f"rank {rank} (pid {pid} on {host})"


def report(seconds: float, answers: list[Answer], silent: list[str], safe: str = "") -> str:
    """Returns the lines for stderr.

    Args:
        seconds: the limit without progress.
        answers: where the ranks are.
        silent: names of the ranks of which no answer has come.
        safe: what the run leaves, or "".
    """
    answers = sorted(answers, key=lambda answer: answer.rank)
    stopped = [answer for answer in answers if answer.state in STATES]
    busy = [answer for answer in answers if not answer.waits]
    if stopped:
        blamed = stopped
        reason = "; ".join(f"{a.name} {STATES[a.state]}: {a.text}" for a in stopped[:4])
    elif silent:
        blamed = []
        reason = f"{', '.join(silent[:4])}{', ...' if len(silent) > 4 else ''}: no answer, is the host down?"
    elif busy:
        blamed = [max(busy, key=lambda answer: answer.idle)]
        reason = f"{blamed[0].name}: {blamed[0].text}"
    else:
        blamed, reason = [], "all ranks wait for each other"
    lines = [f"engine: no progress for {seconds:g} s, stopping all ranks: {reason}"]
    places: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer not in blamed[:4]:
            state = f", {STATES[answer.state]}" if answer.state in STATES else ""
            places.setdefault(answer.text + state, []).append(answer)
    for text, there in places.items():
        numbers = [answer.rank for answer in there]
        word = "rank" if len(numbers) == 1 else "ranks"
        lines.append(f"engine:   {word} {ranges_text(numbers)}, for {max(a.idle for a in there):.0f} s: {text}")
    lines += [f"engine:   {safe}"] if safe else []
    return "\n".join(lines) + "\n"
