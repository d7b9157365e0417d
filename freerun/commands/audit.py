"""`freerun audit`: proves from run.db what became of every task, and from metrics.jsonl that the bound has held."""

from dataclasses import dataclass
from pathlib import Path

from freerun.observe.audit import Audit, audit
from freerun.observe.folder import RunFolder
from freerun.observe.records import read_steps
from freerun.run.resume import load_run


@dataclass(frozen=True)
class Audited:
    found: Audit
    violations: int
    """Trained tokens that were older than the bound allows."""
    bound: int

    @property
    def is_clean(self) -> bool:
        return self.found.is_clean and not self.violations

    @property
    def lines(self) -> list[str]:
        """The last one says it all."""
        found = self.found
        dropped = ", ".join(f"{count:,} {why}" for why, count in sorted(found.dropped.items())) or "none"
        went_on = f", went on {found.begins - 1} times, which undid {found.undone:,} events" if found.begins > 1 else ""
        return [
            f"{found.tasks:,} tasks in a pass over the data; the run began once{went_on}",
            f"dropped: {dropped}" + (f"; sat out a pass as solved: {found.rested:,}" if found.rested else ""),
            *found.examples,
            f"audit: {found.trained:,} trained, {sum(found.dropped.values()):,} dropped, {found.open:,} open, "
            f"{found.lost:,} lost, {found.twice:,} twice, {self.violations:,} tokens past the bound of {self.bound}",
        ]


def audit_run(path: Path) -> Audited:
    folder = RunFolder(path)
    bound = load_run(folder)[0].control.max_staleness
    ages = (record.staleness_histogram for record in read_steps(folder.metrics))
    violations = sum(count for histogram in ages for age, count in histogram.items() if int(age) > bound)
    return Audited(audit(path), violations, bound)
